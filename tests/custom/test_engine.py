"""A user's function as a stage: the inputs that its engine passes, the outputs that it accepts, and its errors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from baton.tasks.core.job import StageError, open_job
from baton.tasks.core.manifest import Manifest, read_manifest, verify, write_manifest
from baton.tasks.custom.engine import work
from baton.tasks.custom.spec import CustomSpec
from baton.tasks.user_code.load_function import forget
from tests.posttrain.tiny import tiny_model
from tests.pretrain.tiny import write_job
from tests.source import ROOT

MERGE = ROOT / "workflows/recipes/merge/merge.py"
HEAD = "from pydantic import BaseModel\nclass Empty(BaseModel, extra='forbid'):\n    factor: float = 1.0\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: tiny_model(folder / name, seed) for seed, name in enumerate(("one", "other"))}


def made(folder: Path, models: dict[str, Path], stage: str, **fields: Any) -> Manifest:
    """Run the engine on all models; returns the manifest of its output."""
    spec = CustomSpec.model_validate({"name": "merged", "stage": stage, "inputs": [*models], **fields}).pinned()
    inputs = {f"inputs.{name}": path for name, path in sorted(models.items())}
    job = write_job(folder / "job", "custom", "hf_model", spec.model_dump(mode="json"), **inputs)
    try:
        work(open_job(job))
    finally:
        forget(job / "sources")  # an engine is a separate process
    return verify(job / "output")


def own(folder: Path, body: str) -> str:
    """Write a user's file that has a stage with this body."""
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(f"{HEAD}def stage(spec: Empty, inputs, output, job):\n    {body}\n")
    return f"{folder / 'mine.py'}:stage"


def test_merged_weights_are_the_weighted_average(tmp_path: Path, models: dict[str, Path]) -> None:
    reverse = {name: models[name] for name in ("other", "one")}  # the weights follow the order of the recipe
    manifest = made(tmp_path, reverse, f"{MERGE}:merge", spec={"weights": [0.25, 0.75]})
    one, other = (load_file(path / "model.safetensors") for path in models.values())
    merged = load_file(tmp_path / "job/output/model.safetensors")
    assert merged.keys() == one.keys()
    for name, tensor in merged.items():
        expected = (0.25 * other[name].float() + 0.75 * one[name].float()).to(torch.bfloat16)
        assert torch.equal(tensor, expected), name
    assert manifest.facts["label"] == "merged" and manifest.facts["parameters"] > 0
    assert {*manifest.parents} == {"inputs.one", "inputs.other"}


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1], r"1 weights for 2 inputs"),
        ([], r"0 weights for 2 inputs"),
        ([1, -1], r"the weights \[1\.0, -1\.0\] add up to 0: give weights with a sum above 0"),
        ([-1, -1], r"add up to -2"),
    ],
)
def test_weights_without_an_average_are_refused(
    tmp_path: Path, models: dict[str, Path], weights: list[float], said: str
) -> None:
    with pytest.raises(StageError, match=said):
        made(tmp_path, models, f"{MERGE}:merge", spec={"weights": weights})


def test_weights_are_divided_by_their_sum_with_a_notice(tmp_path: Path, models: dict[str, Path]) -> None:
    expected = made(tmp_path / "one", models, f"{MERGE}:merge", spec={"weights": [0.25, 0.75]})
    assert made(tmp_path / "four", models, f"{MERGE}:merge", spec={"weights": [1, 3]}).digest == expected.digest
    assert (
        "the weights [1.0, 3.0] are divided by their sum: [0.25, 0.75]"
        in (tmp_path / "four/job/notices.jsonl").read_text()
    )


def test_models_that_compute_in_different_ways_have_no_average(tmp_path: Path, models: dict[str, Path]) -> None:
    other = tiny_model(tmp_path / "other", 1)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5, "transformers_version": "5.0.0"}))
    write_manifest(other, "hf_model", read_manifest(other).facts)
    said = r"one and other compute in different ways \(rms_norm_eps 1e-06, 0\.5\)"
    with pytest.raises(StageError, match=said):
        made(tmp_path, models | {"other": other}, f"{MERGE}:merge")


def test_a_model_is_checked_before_it_is_handed_on(tmp_path: Path, models: dict[str, Path]) -> None:
    body = "import shutil; shutil.copy(inputs['one'] / 'config.json', output)"
    with pytest.raises(StageError, match=r"the model that mine\.py:stage wrote: it has no weights"):
        made(tmp_path, models, own(tmp_path / "mine", body))
    assert not (tmp_path / "job/output/manifest.json").exists()


def test_the_license_of_the_inputs_is_kept(tmp_path: Path, models: dict[str, Path]) -> None:
    licensed = {name: tiny_model(tmp_path / name, seed) for seed, name in enumerate(models)}
    for folder, license in zip(licensed.values(), ("mit", "apache-2.0"), strict=True):
        old = read_manifest(folder)
        write_manifest(folder, old.kind, old.facts | {"license": {"license": license}}, {}, {})
    same = {"one": licensed["one"], "plain": models["one"]}
    assert made(tmp_path / "same", same, f"{MERGE}:merge").facts["license"] == {"license": "mit"}
    assert made(tmp_path / "several", licensed, f"{MERGE}:merge").facts["license"] == {}
    notice = json.loads((tmp_path / "several/job/notices.jsonl").read_text().splitlines()[0])["text"]
    assert "apache-2.0 and mit" in notice


def test_another_artifact_has_the_facts_that_the_function_returns(tmp_path: Path, models: dict[str, Path]) -> None:
    stage = own(tmp_path / "mine", "(output/'n.txt').write_text('x'); return {'files': 1, 'factor': spec.factor}")
    manifest = made(tmp_path, models, stage, makes="artifact", spec={"factor": 2})
    assert manifest.facts == {"files": 1, "factor": 2.0} and [*manifest.files] == ["n.txt"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 1 / 0", r"mine\.py:stage: ZeroDivisionError: division by zero \(mine\.py, line 5: return 1 / 0\)"),
        ("return 3", r"mine\.py:stage returned 3; a stage returns None or a dictionary of facts"),
        ("import numpy; return {'x': numpy.float32(1.5)}", r"mine\.py:stage returned {'x': .*1\.5.*float\(x\)"),
        ("return {1: 2}", r"mine\.py:stage returned {1: 2}; facts are values that JSON has, by names"),
        ("return {'x': float('nan')}", r"mine\.py:stage returned {'x': nan}; .*None for NaN.*x: nan \(float\)"),
        ("return {'x': [{'y': (1, 2)}]}", r"x\.0\.y: \(1, 2\) \(tuple\)"),
        ("return {'x': '\\ud800'}", r"x: '.ud800', which has half of a surrogate pair"),
        ("return {'x\\udfff': 1}", r"the name 'x.udfff', which is not text"),
        ("x = {}; x['x'] = x; return x", r"more than 100 levels"),
        ("return {'x': 10 ** 5000}", r"x: a number of too many digits \(int\)"),
        ("return {'digest': 'x'}", r"mine\.py:stage returned the fact digest, a name that every artifact uses"),
        (
            "open(__file__.replace('mine.py', 'data.csv'))",
            r"FileNotFoundError: .*data files beside a stage's source are",
        ),
        ("import shutil; shutil.rmtree(output)", r"mine\.py:stage removed the folder `output`"),
        ("import sys; sys.exit(0)", r"mine\.py:stage: SystemExit: 0 \(mine\.py, line 5: .*\); return to end a stage"),
    ],
)
def test_a_failing_function_is_reported_with_its_line(
    tmp_path: Path, models: dict[str, Path], body: str, said: str
) -> None:
    with pytest.raises(StageError, match=said):
        made(tmp_path, models, own(tmp_path / "mine", body), makes="artifact")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("(output/'a.txt').symlink_to(inputs['one']/'config.json')", r"'a\.txt' is a link to '.*config\.json': copy"),
        ("(output/'a').symlink_to('/nowhere')", r"'a' is a link to '/nowhere': copy the file"),
        ("(output/'all').symlink_to(inputs['one'])", r"'all' is a link to"),
        ("import os; os.mkfifo(output/'pipe')", r"'pipe' is a pipe, a socket or a device: write a file"),
        ("(output/'manifest.json').write_text('{}')", r"manifest\.json is Baton's own file: rename it"),
        ("(output/'a\\nb').write_text('')", r"the name 'a\\nb' has characters that not every storage keeps"),
        ("open(bytes(output) + b'/\\xff', 'w').close()", r"the name '.udcff' has characters"),
    ],
)
def test_what_an_artifact_cannot_hold_is_refused(tmp_path: Path, models: dict[str, Path], body: str, said: str) -> None:
    with pytest.raises(StageError, match=said):
        made(tmp_path, models, own(tmp_path / "mine", body), makes="artifact")


def test_an_artifact_holds_files_in_folders_and_names_those_that_are_empty(
    tmp_path: Path, models: dict[str, Path]
) -> None:
    body = "(output/'a/b').mkdir(parents=True); (output/'a/.c').write_text('x'); (output/'d/e').mkdir(parents=True)"
    manifest = made(tmp_path, models, own(tmp_path / "mine", body), makes="artifact")
    assert [*manifest.files] == ["a/.c"] and not (tmp_path / "job/output/d").exists()
    assert "empty folders are no part of an artifact: a/b/, d/, d/e/" in (tmp_path / "job/notices.jsonl").read_text()


COPY = "import shutil; shutil.copytree(inputs['one'], output, dirs_exist_ok=True)"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "(output/'head.safetensors').write_text('x')",
            r"would be left out: head\.safetensors\. .*index\.json lists its",
        ),
        ("(output/'extra').mkdir(); (output/'extra/x.json').write_text('{}')", r"left out: extra/x\.json"),
        ("(output/'notes.json').write_text('{}')", r"left out: notes\.json"),
        ("(output/'merges.txt').symlink_to('/nowhere')", r"left out: merges\.txt \(a link to nothing\)"),
        ("return {'loss': 1.5}", r"returned {'loss': 1\.5}; the facts of a model are read from its files"),
    ],
)
def test_what_would_be_left_out_of_a_model_is_refused(
    tmp_path: Path, models: dict[str, Path], body: str, said: str
) -> None:
    with pytest.raises(StageError, match=said):
        made(tmp_path, models, own(tmp_path / "mine", f"{COPY}; {body}"))


def test_a_model_by_links_is_the_files_that_they_lead_to(tmp_path: Path, models: dict[str, Path]) -> None:
    body = f"{COPY}; (output/'model.safetensors').unlink(); (output/'README.md').write_text('mine'); "
    body += "(output/'model.safetensors').symlink_to(inputs['one']/'model.safetensors')"
    manifest = made(tmp_path, models, own(tmp_path / "mine", body))
    assert not (tmp_path / "job/output/model.safetensors").is_symlink()
    assert manifest.files["model.safetensors"] == read_manifest(models["one"]).files["model.safetensors"]
    assert "left out of the model, whose card" in (tmp_path / "job/notices.jsonl").read_text()


def test_a_function_that_writes_to_an_input_is_reported(tmp_path: Path) -> None:
    """Later stages read the input too, and the output would be recorded as made from unchanged files."""
    models = {"one": tiny_model(tmp_path / "one", 0)}
    body = "(inputs['one'] / 'config.json').write_text('{}'); return {}"
    with pytest.raises(StageError, match=r"mine\.py:stage changed its input one; write to `output` instead\. .*config"):
        made(tmp_path, models, own(tmp_path / "mine", body), makes="artifact")


def test_a_full_disk_is_not_the_function_s_fault(tmp_path: Path, models: dict[str, Path]) -> None:
    body = "import errno; raise OSError(errno.ENOSPC, 'No space left on device')"
    with pytest.raises(OSError, match="No space left"):
        made(tmp_path, models, own(tmp_path / "mine", body), makes="artifact")


# The end of a turn in a model that is made from others

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
OTHER = TEMPLATE + "{{ '<|im_start|>' if add_generation_prompt }}"
WHOLE = "import shutil; shutil.copytree(inputs['base'], output, dirs_exist_ok=True)"


def with_turns(folder: Path, label: str, template: str | None, ends: int | list[int], seed: int = 0) -> Path:
    """Create a model with this template and these end tokens, as a stage does."""
    tiny_model(folder, seed, turns=True)
    if template:
        (folder / "chat_template.jinja").write_text(template)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends, "temperature": 0.5}))
    write_manifest(folder, "hf_model", read_manifest(folder).facts | {"label": label})
    return folder


def turns(output: Path) -> tuple[str | None, dict[str, Any]]:
    template = output / "chat_template.jinja"
    generation = json.loads((output / "generation_config.json").read_text())
    return template.read_text() if template.exists() else None, generation


@pytest.mark.parametrize("of_base", [None, TEMPLATE, OTHER], ids=["no template", "the same template", "another"])
@pytest.mark.parametrize("order", [("base", "sft"), ("sft", "base")], ids=" ".join)
def test_a_merge_has_the_turns_of_the_tuned_model(tmp_path: Path, of_base: str | None, order: tuple[str, ...]) -> None:
    models = {
        "base": with_turns(tmp_path / "base", "base", of_base, 0),
        "sft": with_turns(tmp_path / "sft", "sft", TEMPLATE, [0, 3], seed=1),
    }
    made(tmp_path, {name: models[name] for name in order}, f"{MERGE}:merge")

    output = tmp_path / "job/output"
    assert turns(output) == (TEMPLATE, {"eos_token_id": [0, 3], "temperature": 0.5})
    assert sequence_of_ends(output) == [3]


def sequence_of_ends(folder: Path) -> list[int]:
    """Generate with Transformers from a model that prefers the end of a turn to all other tokens."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([[5, 6]])
    said = model.generate(ids, max_new_tokens=4, do_sample=False, sequence_bias=[[[3], 1e4]])
    return list(said[0, ids.shape[1] :].tolist())


def test_a_merge_of_models_that_are_asked_in_different_ways_is_refused(tmp_path: Path) -> None:
    models = {
        name: with_turns(tmp_path / name, name, template, [0, 3], seed)
        for seed, (name, template) in enumerate((("one", TEMPLATE), ("other", OTHER)))
    }
    with pytest.raises(
        StageError, match=r"has no tokenizer\.json, and its inputs one, other have different chat templ"
    ):
        made(tmp_path, models, f"{MERGE}:merge")


@pytest.mark.parametrize("of_base", [TEMPLATE, OTHER])
def test_a_function_that_copies_an_untuned_model_s_files_gets_the_ends_of_the_tuned_one(
    tmp_path: Path, of_base: str
) -> None:
    models = {
        "base": with_turns(tmp_path / "base", "base", of_base, 0),
        "sft": with_turns(tmp_path / "sft", "sft", TEMPLATE, [0, 3], seed=1),
    }
    made(tmp_path, models, own(tmp_path / "mine", WHOLE))
    assert turns(tmp_path / "job/output") == (of_base, {"eos_token_id": [0, 3], "temperature": 0.5})
    (notice,) = (tmp_path / "job/notices.jsonl").read_text().splitlines()
    assert "generation ends at <|im_end|> too" in notice


def test_a_function_that_leaves_out_the_chat_template_of_an_input_is_refused(tmp_path: Path) -> None:
    models = {
        "base": with_turns(tmp_path / "base", "base", None, 0),
        "sft": with_turns(tmp_path / "sft", "sft", TEMPLATE, [0, 3], seed=1),
    }
    with pytest.raises(StageError, match="it has no chat template, and its input sft has one: write tok"):
        made(tmp_path, models, own(tmp_path / "mine", WHOLE))
