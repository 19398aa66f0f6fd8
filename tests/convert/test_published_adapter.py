"""A run that starts from an adapter that was published earlier."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from baton.tasks.convert.load_hf import work
from baton.tasks.convert.load_hf_spec import LoadHFSpec, StartFromSpec
from baton.tasks.core.job import StageError, open_job
from baton.tasks.core.manifest import read_manifest, write_manifest
from tests.posttrain.tiny import tiny_model
from tests.pretrain.tiny import write_job
from tests.publish.test_card import logits, published, tuned_adapter

TEMPLATE = "{% for m in messages %}{{ m.content }}<|pad|>{% endfor %}"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("published")
    base = tiny_model(place / "base")
    adapter = tuned_adapter(base, place / "job")
    (adapter / "chat_template.jinja").write_text(TEMPLATE)
    (adapter / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 1], "top_p": 0.9}))
    write_manifest(adapter, "hf_model", read_manifest(adapter).facts)
    return published(place / "published", {"license": "mit"}, **{"model": adapter, "model.base": base})


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of the adapter, as downloaded by a user."""
    return Path(shutil.copytree(original, tmp_path / "mine", ignore=shutil.ignore_patterns("manifest.json")))


def started(folder: Path, job: Path) -> Path:
    spec = StartFromSpec(model=str(folder)).pinned().model_dump(mode="json")
    work(open_job(write_job(job, "load_hf", "hf_model", spec)))
    return job / "output"


def test_it_is_merged_into_the_base_beside_it(folder: Path, tmp_path: Path) -> None:
    assert StartFromSpec(model=str(folder)).missing() == []
    output = started(folder, tmp_path / "job")

    expected = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder / "base"), folder)
    base, ours = (AutoModelForCausalLM.from_pretrained(place) for place in (folder / "base", output))
    torch.testing.assert_close(logits(ours), logits(expected), atol=0.03, rtol=0)  # stored in bf16
    assert (logits(ours) - logits(base)).abs().max() > 0.1
    assert (output / "chat_template.jinja").read_text() == TEMPLATE
    assert json.loads((output / "generation_config.json").read_text()) == {"eos_token_id": [0, 1], "top_p": 0.9}
    assert not [*output.rglob("adapter*")]
    assert read_manifest(output).facts["license"] == {"license": "mit"}


def test_its_state_is_that_of_its_base_too(folder: Path) -> None:
    spec = StartFromSpec(model=str(folder))
    files = [file.name for file in spec.local_files()]
    assert {"adapter_config.json", "adapter_model.safetensors", "base/model.safetensors"} <= {*files}
    described = spec.described()
    assert described and {tensor.file.name for tensor in described.tensors.values()} == {"base/model.safetensors"}
    before = spec.pinned().state
    (folder / "base/model.safetensors").touch()
    assert spec.pinned().state != before


def test_continued_pretraining_does_not_take_it(folder: Path) -> None:
    assert "has an adapter (adapter_config.json" in str(LoadHFSpec(model=str(folder)).missing()[0])


def test_without_its_base_it_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.rmtree(folder / "base")
    assert "merge it into the model" in str(StartFromSpec(model=str(folder)).missing()[0])
    with pytest.raises(StageError, match=r"has an adapter .* merge it into the model"):
        started(folder, tmp_path / "job")


def config(**fields: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        weights = load_file(folder / "adapter_model.safetensors")
        change(weights)
        save_file(weights, folder / "adapter_model.safetensors")

    return changed


LAYER = "base_model.model.model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (config(use_rslora=True), "use_rslora True: only a plain LoRA adapter"),
        (
            config(use_dora=True, alpha_pattern={"q_proj": 3}),
            "alpha_pattern {'q_proj': 3}, use_dora True: only a plain",
        ),
        (config(init_lora_weights="pissa"), "init_lora_weights 'pissa'"),
        (config(peft_type="IA3"), "peft_type 'IA3'"),
        (config(r=0), "r 0"),
        (config(r=2), "layers.* is .*, which its rank 2 does not allow"),
        (config(a_new_field=1), "a_new_field 1"),
        (tensors(lambda each: each.pop(f"{LAYER}.lora_A.weight")), "layers.1.self_attn.q_proj.lora_A.weight: its tens"),
        (tensors(lambda each: each.update(more=torch.zeros(1))), "more: its tensors are not those of the layers"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"x"), "cannot be read"),
        (lambda folder: (folder / "base/model.safetensors").unlink(), "no weights in safetensors files"),
    ],
)
def test_what_would_be_merged_into_another_model_is_refused(
    change: Callable[[Path], None], said: str, folder: Path, tmp_path: Path
) -> None:
    change(folder)
    with pytest.raises(StageError, match=said):
        started(folder, tmp_path / "job")
    assert not (tmp_path / "job/output/manifest.json").exists()
