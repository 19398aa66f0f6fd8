"""A tuned model stops at the end of its turn, in every form in which it is published."""

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton.tasks.core.job import open_job
from baton.tasks.core.manifest import write_manifest
from baton.tasks.models.adapter_base import ADAPTER
from baton.tasks.posttrain.adapter_files import source_of
from baton.tasks.posttrain.methods import sft
from tests.posttrain.test_adapter_files import spec
from tests.posttrain.tiny import chat, repeated_words, tiny_model, tiny_rows, write_job
from tests.publish.test_card import published, run_code
from tests.source import ROOT, last_json

END, MOST = 3, 6  # the id of <|im_end|>, and the number of tokens


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("base") / "model", turns=True)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_rows(tmp_path_factory.mktemp("rows") / "rows", [*map(chat, repeated_words(16))], "messages")


@pytest.fixture(scope="module")
def tuned(base: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The base tuned on conversations, as a merged model and as an adapter."""
    found = {}
    for output in ("merged", "adapter"):
        settings = spec(output) | {"steps": 1, "warmup_steps": 0}
        job = write_job(tmp_path_factory.mktemp(output) / "job", "sft", settings, model=base, rows=rows)
        sft.train(open_job(job))
        found[output] = job / "output"
    return found


@pytest.fixture(scope="module")
def folders(base: Path, tuned: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both models as they are published, in folders that were moved since."""
    place = tmp_path_factory.mktemp("published")
    inputs = {"merged": {"model": tuned["merged"]}, "adapter": {"model": tuned["adapter"], "model.base": base}}
    for name, given in inputs.items():
        made = published(place / "job", {}, **given)
        shutil.copytree(made, place / name)
        shutil.rmtree(place / "job")
    return {name: place / name for name in inputs}


def generated(model: Any) -> list[int]:
    """Generate from a model that prefers the end of a turn to all other tokens, and would continue if it did not
    stop there."""
    ids = torch.tensor([[5, 6]])
    with torch.no_grad():
        whole = model.generate(input_ids=ids, max_new_tokens=MOST, sequence_bias=[[[END], 1e4]], do_sample=False)
    return list(whole[0, 2:].tolist())


def test_an_untuned_model_goes_on(base: Path) -> None:
    assert generated(AutoModelForCausalLM.from_pretrained(base)) == [END] * MOST


def test_a_merged_model_stops(tuned: dict[str, Path]) -> None:
    assert generated(AutoModelForCausalLM.from_pretrained(tuned["merged"])) == [END]


@pytest.mark.parametrize("form", ["merged", "adapter"])
def test_a_published_model_stops_by_its_card(
    form: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert generated(run_code(folders[form], monkeypatch)["model"]) == [END]


LOADS: dict[str, Callable[[Path], Any]] = {
    "AutoModelForCausalLM": AutoModelForCausalLM.from_pretrained,
    "the base, and PEFT": lambda folder: PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(folder / "base"), folder
    ),
}


@pytest.mark.parametrize("load", LOADS)
def test_a_published_adapter_stops_from_any_current_folder(load: str, folders: dict[str, Path]) -> None:
    model = LOADS[load](folders["adapter"])
    assert generated(model) == [END]
    assert any("lora" in name for name, _ in model.named_parameters())


def test_a_published_adapter_s_base_is_asked_as_the_adapter(folders: dict[str, Path]) -> None:
    """A server that is started on `base/` with the adapter reads the tokenizer of `base/`."""
    templates = [AutoTokenizer.from_pretrained(folders["adapter"] / name).chat_template for name in ("", "base")]
    assert templates[0] == templates[1] is not None


def test_peft_s_own_class_loads_a_published_adapter_as_its_card_says(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PEFT searches for the base in the current folder. Once it finds the base in other folders, the card can be
    shorter."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=r"\./base"):
        AutoPeftModelForCausalLM.from_pretrained(folders["adapter"])
    (code,) = re.findall(r"`(with contextlib.*?)`", (folders["adapter"] / "README.md").read_text())
    found = {"path": folders["adapter"], "contextlib": contextlib, "AutoPeftModelForCausalLM": AutoPeftModelForCausalLM}
    exec(code, found)
    assert generated(found["model"]) == [END] and Path.cwd() == tmp_path


def test_what_is_tuned_further_stops(base: Path, tuned: dict[str, Path], rows: Path, tmp_path: Path) -> None:
    """The next stage merges the adapter."""
    job = write_job(tmp_path / "job", "sft", spec("merged"), **{"model": tuned["adapter"], "model.base": base})
    assert generated(AutoModelForCausalLM.from_pretrained(source_of(open_job(job)))) == [END]
    assert (tuned["adapter"] / ADAPTER).is_dir()


@pytest.mark.long
@pytest.mark.usefixtures("vllm")
def test_vllm_stops_in_each_form(base: Path, tuned: dict[str, Path], folders: dict[str, Path]) -> None:
    for folder in folders.values():
        write_manifest(folder, "published_model", {"label": "sft"})
    forms = [base, *tuned.values(), *folders.values()]
    command = [sys.executable, "-m", "tests.publish.stops", str(END), str(MOST), *map(str, forms)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert last_json(ended.stdout) == [MOST, 1, 1, 1, 1]
