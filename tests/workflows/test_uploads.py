"""A recipe's small local files are uploaded through Flyte's admin, and found at the addresses in the recipe."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset, DatasetDict
from flytekit.clis.sdk_in_container.run import RunLevelParams

from baton.infra.storage.address import DIGEST, fetch
from baton.tasks.data.classifier import check_classifiers
from baton.tasks.data.curate_spec import CurateStep
from baton.tasks.evaluate.spec import EvaluatorSpec
from baton.tasks.evaluate.task_files import place
from baton.tasks.rows.read import read as read_rows
from baton.workflows.checks.run_context import for_a_cluster
from baton.workflows.cluster.uploads import local_paths, too_large, upload
from baton.workflows.dag.recorded import with_source_code
from baton.workflows.recipe import Recipe, context_of
from tests.cluster.admin import admin
from tests.cluster.storage import Storage, s3
from tests.data.test_classifier import LABELS, write_model
from tests.s3 import S3

SHARDS = {"tokenizer": {"vocab_size": 512}, "shards": {}, "pretrain": {}}


@pytest.fixture(scope="module")
def storage() -> Iterator[Storage]:
    with s3() as storage:
        yield storage


@pytest.fixture(scope="module")
def params(storage: Storage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunLevelParams]:
    """The parameters of `pyflyte run --remote` for a cluster, without credentials of its bucket."""
    config = tmp_path_factory.mktemp("client") / "config.yaml"
    with admin(storage) as (_, address):
        config.write_text(yaml.safe_dump({"admin": {"endpoint": address, "insecure": True}}))
        yield RunLevelParams(remote=True, config_file=str(config), project="p", domain="d")


def submitted(params: RunLevelParams, recipe: dict[str, Any]) -> Recipe:
    with for_a_cluster():
        whole = Recipe.model_validate(recipe)
        return upload(whole, local_paths(context_of(whole), ""), params)


def lines(folder: Path, *texts: str) -> Path:
    folder.mkdir(parents=True)
    for number, text in enumerate(texts):
        (folder / f"{number}.jsonl").write_text(json.dumps({"text": text}) + "\n")
    return folder


def corpus(path: Path | str) -> dict[str, Any]:
    return {"source": {"kind": "jsonl", "path": str(path)}}


def test_pods_find_the_files_that_the_recipe_named(
    params: RunLevelParams, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))
    rows = lines(tmp_path / "rows", "one", "two", "three")
    recipe = submitted(params, {"corpus": corpus(f"{rows}/[01].jsonl")})
    path = recipe.corpus.source.path  # type: ignore[union-attr]
    assert path.startswith(storage.root) and str(tmp_path) not in recipe.model_dump_json()
    with S3(storage.for_pods).flyte(tmp_path):
        assert {each.name: each.read_bytes() for each in fetch(path).iterdir()} == {
            name: (rows / name).read_bytes() for name in ("0.jsonl", "1.jsonl")
        }
        Recipe.model_validate_json(recipe.model_dump_json())  # the recipe as the first pod reads it


def test_the_same_files_elsewhere_make_the_same_job(params: RunLevelParams, tmp_path: Path) -> None:
    recipes = [submitted(params, {"corpus": corpus(lines(tmp_path / place, "one"))}) for place in ("here", "there")]
    one, other = (each.corpus.pinned() for each in recipes if each.corpus)
    assert one.identity() == other.identity()
    changed = submitted(params, {"corpus": corpus(lines(tmp_path / "changed", "uno"))})
    assert changed.corpus and changed.corpus.pinned().identity() != one.identity()


def test_every_path_of_a_recipe_travels(params: RunLevelParams, tmp_path: Path) -> None:
    more = [{"source": {"kind": "stdlib"}}, corpus(lines(tmp_path / "more", "two"))]
    recipe = submitted(params, SHARDS | {"corpus": corpus(lines(tmp_path / "rows", "one")), "more_corpora": more})
    assert DIGEST in recipe.corpus.source.path  # type: ignore[union-attr]
    assert DIGEST in recipe.more_corpora[1].source.path  # type: ignore[union-attr]
    assert recipe.more_corpora[0].source.kind == "stdlib"


def test_what_a_curation_reads_travels(
    params: RunLevelParams, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))

    def submitted_from(folder: Path) -> list[CurateStep]:
        exam = lines(folder, "an item of an exam") / "0.jsonl"
        model = write_model(folder / "lid.ftz", LABELS)
        steps = [
            {"classifier": {"model": str(model), "keep": ["en"]}},
            {"decontaminate": {"against": [str(exam)]}},
        ]
        corpus = submitted(params, {"corpus": {"curate": steps}}).corpus
        assert corpus and str(folder) not in corpus.model_dump_json()
        return corpus.pinned().curate

    with S3(storage.for_pods).flyte(tmp_path):
        steps = submitted_from(tmp_path / "here")
        check_classifiers(steps)
        assert [name for step in steps for name in step.missing()] == []
        files = [file.name for step in steps for source in step.sources().values() for file in source.files()]
        assert files == ["lid.ftz", "0.jsonl"]
        assert [step.identity() for step in submitted_from(tmp_path / "there")] == [step.identity() for step in steps]


def test_what_lm_eval_s_tasks_read_travels(
    params: RunLevelParams, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes files that are too large for the recipe."""
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))
    rows = "".join(json.dumps({"question": f"{n}?" * 20, "answer": "yes"}) + "\n" for n in range(20_000))

    def submitted_from(folder: Path) -> EvaluatorSpec:
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "test.jsonl").write_text(rows)
        (folder / "mine.yaml").write_text("task: mine\ndataset_path: json\ndataset_kwargs: {data_dir: data}\n")
        recipe = {"start_from": {"model": "owner/model"}, "evaluate": {"mine": {"lm_eval": [f"{folder}/mine.yaml"]}}}
        with for_a_cluster():
            whole = with_source_code(Recipe.model_validate(recipe))
            found = upload(whole, local_paths(context_of(whole), ""), params)
        assert str(folder) not in found.model_dump_json()
        in_pod = Recipe.model_validate_json(found.model_dump_json()).evaluate
        assert in_pod
        return in_pod.pinned().evaluators()["mine"]

    monkeypatch.setattr("baton.workflows.checks.tasks.tried", lambda *_: None)  # other tests try tasks
    with S3(storage.for_pods).flyte(tmp_path):
        found = submitted_from(tmp_path / "here")
        place(tmp_path / "pod", found.task_files or {}, found.task_data, found.task_place)
        assert (tmp_path / "pod" / "data" / "test.jsonl").read_text() == rows
        assert submitted_from(tmp_path / "there").identity() == found.identity()


def read_in_a_pod(recipe: Recipe, name: str, storage: Storage, folder: Path) -> list[Any]:
    """Return the rows of a set, as its stage reads them in a pod."""
    with S3(storage.for_pods).flyte(folder):
        spec = Recipe.model_validate_json(recipe.model_dump_json()).data[name].pinned()
        return [each.value for each in read_rows(spec, folder)]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_a_set_s_file_travels(
    params: RunLevelParams, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))
    (tmp_path / name).write_text('{"text": "one"}\n{"text": "two"}\n')
    recipe = submitted(params, {"data": {"mine": {"path": str(tmp_path / name)}}})
    assert read_in_a_pod(recipe, "mine", storage, tmp_path) == [{"text": "one"}, {"text": "two"}]


def test_a_set_s_folder_that_save_to_disk_wrote_travels(
    params: RunLevelParams, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))
    parts = {split: Dataset.from_dict({"text": [split]}) for split in ("train", "test")}
    DatasetDict(parts).save_to_disk(tmp_path / "mine")
    source = {"name": str(tmp_path / "mine"), "split": "test", "streaming": False}
    recipe = submitted(params, {"data": {"mine": {"huggingface": source}}})
    assert read_in_a_pod(recipe, "mine", storage, tmp_path) == [{"text": "test"}]


def test_a_set_s_folder_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "rows.jsonl").write_text('{"text": "one"}\n')
    os.truncate(tmp_path / "mine" / "rows.jsonl", 100_000_001)
    recipe = Recipe.model_validate({"data": {"mine": {"huggingface": {"name": str(tmp_path / "mine")}}}})
    (problem,) = too_large(local_paths(context_of(recipe), ""), "")
    assert problem.path == "data.mine.huggingface.name" and "put them into a bucket" in problem.allowed


def test_the_source_of_functions_travels_and_the_rest_is_left_to_pods(tmp_path: Path) -> None:
    """A pod may have credentials for files that this machine cannot look up."""
    (tmp_path / "mine.py").write_text("def rows(): yield {'text': 'one'}")
    data = {"mine": {"function": f"{tmp_path / 'mine.py'}:rows"}}
    recipe = with_source_code(Recipe.model_validate({"corpus": {}, "data": data}))
    assert recipe.data["mine"].function.source == {"mine.py": (tmp_path / "mine.py").read_text()}
    assert recipe.corpus.state is None


def test_files_that_pods_share_stay_where_they_are(tmp_path: Path) -> None:
    recipe = Recipe.model_validate({"corpus": corpus(lines(tmp_path / "rows", "one"))})
    assert local_paths(context_of(recipe), str(tmp_path)) == []
    assert [each.field for each in local_paths(context_of(recipe), "s3://bucket")] == ["corpus.source.path"]
