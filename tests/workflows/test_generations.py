"""The artifacts of earlier generations, read from storage, and the fields in which a recipe must agree with them."""

import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from mlflow import MlflowClient

from baton.infra.errors import UserError
from baton.infra.tracking.store import tracking_uri
from baton.tasks.artifacts import Artifact
from baton.tasks.core.manifest import read_manifest, write_manifest
from baton.tasks.core.stored import send
from baton.tasks.data.artifact import TokenizedCorpus, Tokenizer
from baton.tasks.data.spec import TokenizerSpec
from baton.tasks.pretrain.artifact import MegatronCheckpoint, MegatronWeights
from baton.tasks.pretrain.spec import PretrainSpec
from baton.tasks.promote.ledger import Generation, GenerationArtifact
from baton.tasks.publish.aliases import CHAMPION
from baton.workflows.checks.generations import same_as_before
from baton.workflows.continuous_training.generations import generations, parts
from baton.workflows.continuous_training.recipe import ContinuousRecipe
from baton.workflows.recipe import context_of
from tests.promote import made
from tests.s3 import S3
from tests.shipped import shipped
from tests.tracking.conftest import empty_store, home  # noqa: F401 - fixtures

FACTS = {"documents": 1, "held_out_documents": 0, "bytes": 9, "held_out_bytes": 0}
FACTS |= {"duplicates": 0, "empty": 0, "invalid_utf8": 0}


def generation(folder: Path, storage: str, number: int) -> Generation:
    folder.mkdir()
    (folder / "train-00000.parquet").write_text(f"{number}")
    digest = write_manifest(folder, "corpus", FACTS).digest
    corpus = GenerationArtifact("corpus", digest, send(str(folder), storage))
    return Generation("model", number, number, "promoted", {"corpus": corpus})


def test_corpora_are_read_with_flyte_s_access_to_storage(s3: S3, tmp_path: Path) -> None:
    with s3.flyte(tmp_path):
        storage = f"{s3.address}/{uuid4().hex}"
        generations = [generation(tmp_path / str(number), storage, number) for number in range(1, 20)]
        corpora = parts(generations, "corpus")
    assert [corpus.digest for corpus in corpora] == [each.part("corpus").digest for each in generations]


def sealed(folder: Path, kind: type[Artifact], facts: dict[str, Any], spec: dict[str, Any], **parents: str) -> Path:
    folder.mkdir()
    (folder / "file").write_text(folder.name)
    write_manifest(folder, kind.kind, facts, spec, parents)
    return folder


def problems_of(recipe: dict[str, Any]) -> dict[str, str]:
    found = same_as_before(context_of(ContinuousRecipe.model_validate(recipe)))
    return {problem.path: problem.allowed.partition(", as")[0] for problem in found}


def first_night(folder: Path, recipe: dict[str, Any], start: dict[str, Any] | None = None) -> None:
    """Register one promoted generation of the recipe, with or without weights to start from."""
    tokenizer = TokenizerSpec.model_validate(recipe["tokenizer"]).model_dump(mode="json")
    pretrain = PretrainSpec.model_validate(recipe["pretrain"]).model_dump(mode="json")
    parts = {"tokenizer": sealed(folder / "tokenizer", Tokenizer, {}, tokenizer)}
    parts |= {"corpus": made.corpus(folder / "corpus"), "shards": sealed(folder / "shards", TokenizedCorpus, {}, {})}
    parents = {}
    if start:
        parts["start"] = sealed(folder / "start", MegatronWeights, {}, start)
        parents["start.0"] = read_manifest(parts["start"]).digest
    facts = {"vocab_size": 4096, "precision": "bf16"}
    parts["pretrain"] = sealed(folder / "checkpoint", MegatronCheckpoint, facts, pretrain, **parents)
    model = made.model(folder / "model")
    decision = made.decided(folder / "decide", made.report(folder / "report", model))
    made.promoted(folder / "promote", decision, made.published(folder / "publish", model, **parts))


@pytest.fixture
def recipe(home: Path) -> dict[str, Any]:  # noqa: F811
    found = shipped("continuous.yaml")
    found["publish"]["name"] = made.NAME
    return found


def test_what_only_the_first_night_uses_must_stay_as_it_was(tmp_path: Path, recipe: dict[str, Any]) -> None:
    first_night(tmp_path, recipe)
    assert problems_of(recipe) == {}
    recipe["tokenizer"] |= {"vocab_size": 1024, "min_frequency": 5}
    recipe["init_from"] = {"model": "owner/name"}
    assert problems_of(recipe) == {
        "tokenizer.vocab_size": "4096", "tokenizer.min_frequency": "2", "init_from": "null"
    }  # fmt: skip
    recipe["publish"]["name"] = "another"
    assert problems_of(recipe) == {}


@pytest.mark.parametrize("section", ["publish", "refresh"])
def test_a_champion_without_its_alias_is_missed_before_the_night(
    tmp_path: Path, recipe: dict[str, Any], section: str
) -> None:
    first_night(tmp_path, recipe)
    recipe["publish"]["name"] = "another"
    recipe[section]["name"] = made.NAME
    MlflowClient(tracking_uri()).delete_registered_model_alias(made.NAME, CHAMPION)
    assert problems_of(recipe)[f"{section}.name"].startswith("baton-test has no champion, although versions 1 were")


def test_the_weights_that_training_began_with_are_named(tmp_path: Path, recipe: dict[str, Any]) -> None:
    recipe["init_from"] = {"model": "owner/name"}
    first_night(tmp_path, recipe, {"model": "owner/name", "revision": None, "state": None})
    assert problems_of(recipe) == {}
    assert problems_of(recipe | {"init_from": None}) == {"init_from": "the model that training began with"}
    assert problems_of(recipe | {"init_from": {"model": "owner/other"}}) == {"init_from.model": '"owner/name"'}


def test_a_folder_that_was_moved_is_the_same_start(tmp_path: Path, recipe: dict[str, Any]) -> None:
    tokenizer = tmp_path / "old"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}")
    recipe["tokenizer"] = TokenizerSpec(existing=str(tokenizer)).pinned().model_dump(mode="json")
    first_night(tmp_path, recipe)
    recipe["tokenizer"] = {"existing": str(tokenizer.rename(tmp_path / "new"))}
    assert problems_of(recipe) == {}
    (tmp_path / "new" / "tokenizer.json").write_text("{ }")
    assert problems_of(recipe) == {"tokenizer.existing": f'"{tokenizer}"'}


def test_a_changed_model_is_reported_before_the_night(tmp_path: Path, recipe: dict[str, Any]) -> None:
    layers = recipe["pretrain"]["model"]["layers"]
    first_night(tmp_path, recipe)
    recipe["pretrain"]["model"] |= {"layers": layers + 1, "vocab_size": 8192}
    recipe["pretrain"]["precision"] = "fp32"
    assert problems_of(recipe) == {
        "pretrain.model.layers": str(layers), "pretrain.model.vocab_size": "4096", "pretrain.precision": "bf16"
    }  # fmt: skip


@pytest.mark.parametrize("part", ["tokenizer", "corpus", "shards", "checkpoint", "model"])
def test_files_of_a_generation_that_are_gone_are_reported_before_the_night(
    tmp_path: Path, recipe: dict[str, Any], part: str
) -> None:
    first_night(tmp_path, recipe)
    next(path for path in (tmp_path / part).iterdir() if path.name != "manifest.json").unlink()
    (problem,) = same_as_before(context_of(ContinuousRecipe.model_validate(recipe)))
    assert problem.path == "publish.name"
    assert f"the {part} " in problem.allowed and "Put its files back to" in problem.allowed


def test_a_part_that_is_gone_is_an_error_of_the_user_not_of_the_program(tmp_path: Path, recipe: dict[str, Any]) -> None:
    first_night(tmp_path, recipe)
    shutil.rmtree(tmp_path / "corpus")
    with pytest.raises(UserError, match=r"cannot be loaded: .*Put its files back"):
        parts(generations(made.NAME), "corpus")


def test_what_cannot_be_compared_is_reported(
    tmp_path: Path, recipe: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    first_night(tmp_path, recipe)
    manifest = tmp_path / "checkpoint" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"precision"', '"dtype"'))  # a field of another version
    assert problems_of(recipe) == {}
    assert "not compared with those of earlier generations: " in capsys.readouterr().err
