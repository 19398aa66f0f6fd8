"""LoRA: the trained weights, the saved weights and the merged output."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from transformers import AutoModelForCausalLM

from baton.tasks.core.job import StageError, open_job
from baton.tasks.core.manifest import read_manifest, verify
from baton.tasks.models.model_spec import ModelSpec
from baton.tasks.posttrain.adapter import merged, merged_weights, peft_config
from baton.tasks.posttrain.adapter_spec import AdapterSpec, LoRASpec
from baton.tasks.posttrain.methods import sft
from baton.tasks.posttrain.methods.dpo import trainer as dpo
from tests.posttrain.tiny import metrics, repeated_words, tiny_rows, without_times, write_job

SPEC: dict[str, Any] = {
    "data": "twice",
    "steps": 10,
    "batch_size": 8,
    "layout": {"micro_batch": 8},
    "warmup_steps": 1,
    "learning_rate": 0.02,
    "checkpoint_every": 4,
    "max_new_tokens": 16,
    "adapter": {"lora": {"rank": 4, "alpha": 8}},
}
TINY = ModelSpec(layers=2, hidden=64, heads=2, kv_heads=1, head_dim=32, ffn_hidden=128, max_positions=256)


def adapted(path: Path, dtype: torch.dtype = torch.float32, **lora: Any) -> PeftModel:
    """A model with an adapter whose update is not zero."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    found = get_peft_model(model, peft_config(AdapterSpec(lora=LoRASpec(rank=4, **lora)), model))
    for name, weight in found.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    assert isinstance(found, PeftModel)
    return found


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]])
def test_the_spec_knows_the_number_of_trained_parameters(model: Path, targets: Any) -> None:
    found = adapted(model, targets=targets)

    trained = sum(weight.numel() for weight in found.parameters() if weight.requires_grad)
    assert trained == LoRASpec(rank=4, targets=targets).parameters(TINY)


def test_layers_that_the_model_lacks_are_refused_with_those_that_it_has(model: Path) -> None:
    with pytest.raises(StageError, match=r"targets: c_attn: the model has down_proj, gate_proj, k_proj, o_proj"):
        adapted(model, targets=["c_attn", "q_proj"])


def test_the_merged_model_is_the_model_with_its_adapter(model: Path) -> None:
    both = adapted(model)
    tokens = torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        expected = both(input_ids=tokens).logits
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(input_ids=tokens).logits
        found = merged(both)(input_ids=tokens).logits

    assert (found - expected).abs().max() < 1e-5 < 0.1 < (found - base).abs().max()


def test_a_merge_that_changes_the_model_is_an_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.tasks.posttrain.adapter.TOLERANCE", -1.0)
    with pytest.raises(StageError, match="the merged model's logits differ from those of model and adapter by"):
        merged(adapted(model))


def test_weights_are_merged_one_by_one_without_changing_the_model(model: Path) -> None:
    both = adapted(model, dtype=torch.bfloat16)
    before = {name: weight.clone() for name, weight in both.named_parameters()}

    found = dict(merged_weights(both))

    assert all(torch.equal(weight, before[name]) for name, weight in both.named_parameters())
    expected = dict(merged(both).named_parameters())
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight.float(), expected[name], rtol=0, atol=1e-6)


QUANTIZED = {"adapter": {**SPEC["adapter"], "quantize": "nf4"}}


@pytest.fixture(params=[{}, QUANTIZED], ids=["LoRA", "QLoRA"])
def spec(request: pytest.FixtureRequest) -> dict[str, Any]:
    chosen: dict[str, Any] = request.param
    return SPEC | chosen


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_rows(tmp_path_factory.mktemp("rows") / "rows", repeated_words(), "prompt_completion")


def test_sft_trains_the_adapter_and_writes_a_merged_model_in_the_sources_format(
    model: Path, rows: Path, tmp_path: Path, spec: dict[str, Any]
) -> None:
    job = write_job(tmp_path / "job", "sft", spec, model=model, rows=rows)
    sft.train(open_job(job))

    assert verify(job / "output").facts == read_manifest(model).facts | {"label": "sft"}
    before, after = (load_file(path / "model.safetensors") for path in (model, job / "output"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert before.keys() == after.keys() and {weight.dtype for weight in after.values()} == {torch.bfloat16}
    assert changed == {name for name in before if "proj" in name}
    losses = [line["loss"] for line in metrics(job)[1:]]
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.long
def test_stopped_it_continues_from_a_checkpoint_of_the_adapter_alone(
    model: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any]
) -> None:
    whole, stopped = (write_job(tmp_path / name, "sft", spec, model=model, rows=rows) for name in ("whole", "stopped"))
    sft.train(open_job(whole))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("baton.tasks.posttrain.trainer.Reporter.on_step_end", interrupted_after(6))
        sft.train(open_job(stopped))
    (checkpoint,) = (stopped / "work" / "checkpoints").glob("checkpoint-*")
    held = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    tensors = [name for name, entry in held.items() if isinstance(entry, TensorStorageMetadata)]
    assert tensors and all("lora_" in name for name in tensors)

    sft.train(open_job(stopped))

    assert read_manifest(stopped / "output").digest == read_manifest(whole / "output").digest
    assert without_times(stopped) == without_times(whole)


def interrupted_after(step: int) -> Any:
    def on_step_end(self: Any, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == step:
            raise KeyboardInterrupt

    return on_step_end


def test_the_reference_of_dpo_is_the_base_without_a_second_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any]
) -> None:
    preferences = [row | {"chosen": row["completion"], "rejected": " no"} for row in repeated_words()]
    rows = tiny_rows(tmp_path / "rows", preferences, "preference")
    job = write_job(tmp_path / "job", "dpo", spec, model=model, rows=rows)
    references = []
    monkeypatch.setattr(dpo, "share_prompts", lambda _, reference: references.append(reference))

    dpo.train(open_job(job))

    first, *_, last = metrics(job)[1:]
    assert references == [None]
    assert first["margin"] == 0 and last["margin"] > 0 and last["preference_accuracy"] > 0.9
