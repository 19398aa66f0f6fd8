"""`baton plan` plans the next night of a continuous recipe from the state of the registry."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.data.artifact import Corpus, TokenizedCorpus, Tokenizer
from baton.tasks.pretrain.artifact import MegatronCheckpoint
from baton.workflows.checks.table import problems_of
from baton.workflows.continuous_training.calls import NEW_TEXT, found
from baton.workflows.continuous_training.recipe import ContinuousRecipe
from baton.workflows.dag.walk import walk
from baton.workflows.plan.command import Examined, examined_recipe
from tests.promote import made
from tests.source import ROOT
from tests.tracking.conftest import empty_store, home
from tests.workflows.test_generations import sealed

__all__ = ["empty_store", "home"]

FIRST_NIGHT = """\
own, the first night: 11 stages, 0 of them cached
  increment     here
  tokenizer     here                after increment
  shards        here                after increment, tokenizer
  pretrain      here                after shards
  convert       here                after tokenizer, pretrain
  audit         here                after shards, pretrain, convert
  evaluate-base here                after increment, convert
  decide        here                after evaluate-base
  publish       here                after increment, tokenizer, shards, pretrain, convert, evaluate-base
  promote       here                after decide, publish
  report        here                after increment, tokenizer, shards, pretrain, convert, audit, evaluate-base, decide, publish"""
LATER_NIGHT = """\
own, after version 1: 12 stages, 0 of them cached
  increment         here
  shards            here                after increment
  gather            here                after increment
  pretrain          here                after shards
  convert           here                after pretrain
  audit             here                after shards, pretrain, convert
  evaluate-base     here                after increment, gather, convert
  evaluate-champion here                after increment, gather
  decide            here                after evaluate-base, evaluate-champion
  publish           here                after increment, shards, pretrain, convert, evaluate-base
  promote           here                after decide, publish
  report            here                after increment, shards, pretrain, convert, audit, evaluate-base, decide, publish"""


@pytest.fixture
def recipe(home: Path, tmp_path: Path) -> dict[str, Any]:
    """A recipe for a night on the texts of a folder, and for a refresh."""
    (tmp_path / "incoming").mkdir()
    for number in range(20):
        (tmp_path / f"incoming/{number}.txt").write_text(f"It rained for {number} days.")
    rows = [{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(40)]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "name": "own",
        "corpus": {"source": {"kind": "files", "path": str(tmp_path / "incoming")}},
        "tokenizer": {"vocab_size": 300},
        "shards": {},
        "pretrain": {"steps": 100, "global_batch": 4, "sequence_length": 64, "layout": {"micro_batch": 4}},
        "convert": {},
        "evaluate": {"bits_per_byte": {}},
        "publish": {"name": made.NAME},
        "data": {"chat": {"path": str(tmp_path / "chat.jsonl"), "held_out": 0.2}},
        "post_training": [{"sft": {"data": "chat"}}],
        "refresh": {"name": "own-tuned", "promotion": {}},
    }


def plan(recipe: dict[str, Any]) -> Examined:
    read = ContinuousRecipe.model_validate(recipe)
    return examined_recipe(read, problems_of(read), {}, None, elsewhere=False)


def generation(folder: Path, recipe: dict[str, Any], corpus: Path) -> None:
    """Register a promoted version that was trained on this corpus."""
    spec = ContinuousRecipe.model_validate(recipe).pretrain.model_dump(mode="json")
    shards: dict[str, Any] = {
        "tokens": 10_000,
        "held_out_tokens": 9,
        "held_out_bytes": 9,
        "vocab_size": 300,
        "eos_id": 0,
    }
    checkpoint: dict[str, Any] = {
        "step": 100,
        "tokens_seen": 25_600,
        "parameters": 1,
        "vocab_size": 300,
        "sequence_length": 64,
    }
    checkpoint |= {"precision": "bf16", "layout": {}, "validation_loss": 1.0, "tokenizer_digest": ""}
    parts = {
        "corpus": corpus,
        "shards": sealed(folder / "shards", TokenizedCorpus, shards | {"tokenizer_digest": ""}, {}),
        "tokenizer": sealed(folder / "tokenizer", Tokenizer, {"vocab_size": 300, "eos_id": 0, "pad_id": 1}, {}),
        "pretrain": sealed(folder / "checkpoint", MegatronCheckpoint, checkpoint, spec),
    }
    model = made.model(folder / "model")
    decision = made.decided(folder / "decide", made.report(folder / "report", model))
    made.promoted(folder / "promote", decision, made.published(folder / "publish", model, **parts))


def test_the_first_night_trains_a_tokenizer_and_a_model(recipe: dict[str, Any]) -> None:
    planned = plan(recipe)
    output = "\n".join(planned.lines())
    assert output.startswith(FIRST_NIGHT)
    assert "own-tuned, if the new version of baton-test is promoted: 8 stages" in output
    assert f"training begins: {made.NAME} has no accepted version" in output
    (pretrain,) = (stage for stage in planned.stages if stage.name == "pretrain")
    assert pretrain.spec == ContinuousRecipe.model_validate(recipe).pretraining()


def test_a_later_night_continues_from_the_newest_version(recipe: dict[str, Any], tmp_path: Path) -> None:
    generation(tmp_path, recipe, made.corpus(tmp_path / "corpus"))
    planned = plan(recipe)
    output = "\n".join(planned.lines())
    assert output.startswith(LATER_NIGHT) and LATER_NIGHT in (ROOT / "docs/continuous.md").read_text()
    assert (
        "epochs      1.01 over about 10,000 new tokens: repeated\n              1.01 over 10,000 replayed tokens"
        in output
    )
    assert planned.night == (
        "training continues from version 1; how much text is new is known only in the night: the plan assumes 10,000 "
        "tokens, as many as version 1 had"
    )
    assert "own-tuned, if the new version of baton-test is promoted: 8 stages" in output


def test_a_night_without_new_text_trains_nothing_and_tunes_the_champion_if_that_is_due(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    read = ContinuousRecipe.model_validate(recipe)
    first: Corpus = walk(found(read, read.corpus.pinned(), []))[NEW_TEXT]
    generation(tmp_path, recipe, first.local())
    walk(found(read, read.corpus.pinned(), [1]), {"corpus of version 1": first})
    planned = plan(recipe)
    assert [(stage.part, stage.name) for stage in planned.stages if stage.cached] == [
        ("own, after version 1", NEW_TEXT)
    ]
    assert [stage.name for stage in planned.stages][:3] == [NEW_TEXT, "corpus", "rows-chat"]
    assert planned.stages[1].part == f"own-tuned, of the champion of {made.NAME}"
    assert planned.night == "nothing to train on: 0 B of new text"


def test_planning_makes_no_store(recipe: dict[str, Any], home: Path) -> None:
    (home / "mlflow.db").unlink()
    assert plan(recipe).stages
    assert not (home / "mlflow.db").exists()
