"""An adapter as a stage's model: its files, its base, and the results computed from both."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from baton.tasks.core.job import open_job
from baton.tasks.core.manifest import ArtifactError, read_manifest, write_manifest
from baton.tasks.models.adapter_base import ADAPTER, open_model
from baton.tasks.posttrain.adapter_files import joined
from baton.tasks.posttrain.adapter_spec import AdapterSpec, LoRASpec
from baton.tasks.posttrain.methods import sft
from baton.tasks.posttrain.methods.sft import SFTSpec
from baton.tasks.publish.copy import copy_model
from baton.tasks.serve.server import open_served
from tests.posttrain.test_adapter import SPEC
from tests.posttrain.tiny import repeated_words, tiny_model, tiny_rows, write_job
from tests.source import ROOT, last_json


def spec(output: str) -> dict[str, Any]:
    return SPEC | {"adapter": {"lora": {"rank": 4, "alpha": 8}, "output": output}}


def tuned(folder: Path, rows: Path, output: str, **inputs: Path) -> Path:
    job = write_job(folder, "sft", spec(output), rows=rows, **inputs)
    sft.train(open_job(job))
    return job / "output"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_rows(tmp_path_factory.mktemp("rows") / "rows", repeated_words(), "prompt_completion")


@pytest.fixture(scope="module")
def adapter(model: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tuned(tmp_path_factory.mktemp("adapter") / "job", rows, "adapter", model=model)


@pytest.fixture(scope="module")
def merged(model: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tuned(tmp_path_factory.mktemp("merged") / "job", rows, "merged", model=model)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=torch.arange(40).unsqueeze(0)).logits
    return found.float()


def load(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype)


def test_it_has_the_adapter_s_weights_alone_and_the_digest_of_its_base(model: Path, adapter: Path) -> None:
    base = read_manifest(model)
    made = read_manifest(adapter)
    assert made.facts == base.facts | {"label": "sft", "base": {"digest": base.digest}}
    assert made.display == {"base": {"digest": base.digest, "place": str(model)}}
    assert [path.parent.name for path in adapter.rglob("*.safetensors")] == [ADAPTER]
    config = json.loads((adapter / ADAPTER / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["r"]) == (base.digest, 4)


def test_peft_reads_it_as_the_merged_model(model: Path, adapter: Path, merged: Path) -> None:
    found = logits(PeftModel.from_pretrained(load(model), adapter / ADAPTER))
    torch.testing.assert_close(found, logits(load(merged)), atol=0.03, rtol=0)  # the merged model is stored in bf16
    assert (found - logits(load(model))).abs().max() > 0.3


def test_an_adapter_is_refused_on_another_base(adapter: Path, tmp_path: Path) -> None:
    other = tiny_model(tmp_path / "other", seed=1)
    digest = read_manifest(other).digest[:12]
    with pytest.raises(ArtifactError, match=f"is an adapter of model .*, but .* is {digest}. An adapter fits only"):
        open_model(adapter, other)


def test_a_base_that_has_moved_is_asked_for(model: Path, adapter: Path, tmp_path: Path) -> None:
    gone = json.loads((adapter / "manifest.json").read_text())
    gone["display"]["base"]["place"] = str(tmp_path / "gone")
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in adapter.rglob("*"):
        if path.is_file():
            (copy / path.relative_to(adapter)).parent.mkdir(parents=True, exist_ok=True)
            (copy / path.relative_to(adapter)).write_bytes(path.read_bytes())
    (copy / "manifest.json").write_text(json.dumps(gone))

    with pytest.raises(ArtifactError, match=r"its base .* is no longer in .*gone: give its new location with --base"):
        open_model(copy)
    assert open_model(copy, model).weights == model


def test_a_second_stage_trains_on_the_merged_model_and_leaves_one_adapter_of_the_first_base(
    model: Path, adapter: Path, merged: Path, rows: Path, tmp_path: Path
) -> None:
    inputs = {"model": adapter, "model.base": model}
    second = tuned(tmp_path / "adapter", rows, "adapter", **inputs)
    expected = tuned(tmp_path / "merged", rows, "merged", model=merged)

    assert read_manifest(second).facts["base"]["digest"] == read_manifest(model).digest
    weights = load_file(second / ADAPTER / "adapter_model.safetensors")
    assert {min(weight.shape) for weight in weights.values()} == {8}
    found = logits(PeftModel.from_pretrained(load(model), second / ADAPTER))
    torch.testing.assert_close(found, logits(load(expected)), atol=0.05, rtol=0)


def test_joined_adapters_add_up_and_layers_of_one_alone_are_padded() -> None:
    names = [f"layers.0.{layer}.lora_{part}.weight" for layer in ("q", "v") for part in "AB"]
    first = dict(zip(names, (torch.randn(2, 6), torch.randn(5, 2), torch.randn(2, 6), torch.randn(4, 2)), strict=True))
    second = {names[0]: torch.randn(3, 6), names[1]: torch.randn(5, 3)}

    both, rank = joined((first, 2, 8), (second, 3, 3))

    assert rank == 5
    torch.testing.assert_close(
        both[names[1]] @ both[names[0]], 4 * first[names[1]] @ first[names[0]] + second[names[1]] @ second[names[0]]
    )
    torch.testing.assert_close(both[names[3]] @ both[names[2]], 4 * first[names[3]] @ first[names[2]])


def test_it_is_served_under_its_digest_and_label_beside_its_base(model: Path, adapter: Path) -> None:
    served = open_served(adapter)
    words = dict(pairwise(served.arguments()))
    assert (words["--model"], words["--max-lora-rank"]) == (str(model), "8")
    assert Path(words["--tokenizer"], "tokenizer.json").read_bytes() == (adapter / "tokenizer.json").read_bytes()
    names = served.arguments().index("--served-model-name")
    assert served.arguments()[names + 2 : names + 4] == [served.digest, "sft"]
    assert served.arguments()[-1] == f"{served.digest}={adapter / ADAPTER}"


def test_a_published_adapter_has_the_weights_of_its_base_beside_it(model: Path, adapter: Path, tmp_path: Path) -> None:
    copy_model(open_model(adapter), tmp_path / "published")
    write_manifest(tmp_path / "published", "published_model", {"label": "sft"})
    opened = open_model(tmp_path / "published")
    assert (
        opened.adapter
        and (opened.weights / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    )


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"adapter": {"quantize": "nf4"}, "layout": {"processes": 2, "sharding": "fsdp2"}}, "layout.sharding"),
        ({"adapter": {"lora": {"rank": 1024}, "output": "adapter"}}, "adapter.lora.rank"),
    ],
)
def test_what_cannot_be_sharded_or_served_is_refused(changes: dict[str, Any], path: str) -> None:
    (problem,) = SFTSpec.model_validate(changes).problems()
    assert problem.path == path


def test_a_merged_output_is_what_it_was_before_there_was_a_choice() -> None:
    """The choice changes no cache key."""
    assert AdapterSpec().identity() == {"lora": LoRASpec().identity()}


@pytest.mark.long
@pytest.mark.usefixtures("vllm")
def test_vllm_answers_with_the_adapter_as_with_the_merged_model(model: Path, adapter: Path, merged: Path) -> None:
    command = [sys.executable, "-m", "tests.posttrain.greedy", *map(str, (model, adapter, merged))]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    (of_base, base_logprobs), (of_adapter, adapter_logprobs), (of_merged, merged_logprobs) = last_json(ended.stdout)
    assert of_adapter == of_merged != of_base
    for prompt, same, other in zip(adapter_logprobs, merged_logprobs, base_logprobs, strict=True):
        assert prompt == pytest.approx(same, abs=0.05) != pytest.approx(other, abs=0.05)
