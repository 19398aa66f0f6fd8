"""The DAGs of continuous training as data."""

from typing import Any

from baton.workflows.continuous_training.calls import (
    SERVING,
    Night,
    Replayed,
    found,
    of_version,
    refreshed,
    tokenized,
    trained,
)
from baton.workflows.continuous_training.recipe import ContinuousRecipe
from baton.workflows.dag.call import Calls
from baton.workflows.dag.post_training import BASE
from tests.shipped import shipped

CONTENT: dict[str, Any] = shipped("continuous.yaml")
NEW = {"": 200_000}
EXAM = {"evaluate": CONTENT["evaluate"] | {"exam": {"lm_eval": ["piqa"]}}, "promotion": {"metric": "exam.piqa.acc"}}


def recipe(**changes: Any) -> ContinuousRecipe:
    return ContinuousRecipe.model_validate(CONTENT | changes)


def titles(dag: Calls) -> list[str]:
    return [call.title for call in dag]


def inputs(dag: Calls, title: str) -> dict[str, Any]:
    return next(call.inputs for call in dag if call.title == title)


def replayed(*versions: int, whole: bool = True) -> list[Replayed]:
    return [Replayed(version - 1, version, {"": 1_000_000}, whole) for version in versions]


def later(**changes: Any) -> Night:
    """Return the state of the night after two accepted generations."""
    given: dict[str, Any] = {"accepted": [1, 2], "data_sets": [replayed(1), replayed(2)], "has_champion": True}
    return Night(NEW, 4096, **given | changes)


def test_the_first_night_is_an_ordinary_run_that_ends_with_a_promotion() -> None:
    read = recipe()
    dag = [*found(read, read.corpus, []), *tokenized(read, is_first=True), *trained(read, Night(NEW, 4096))]
    assert [call.title for call in dag] == [
        "increment",
        "tokenizer",
        "shards",
        "rows-statements",
        "pretrain",
        "convert",
        "audit",
        "evaluate-base",
        "decide",
        "publish",
        "promote",
        "report",
    ]
    spec = next(call.spec for call in dag if call.title == "pretrain")
    assert spec == read.pretraining()


def test_a_later_night_continues_from_the_newest_accepted_checkpoint_and_replays_the_text_of_all() -> None:
    dag = trained(recipe(), later())
    assert inputs(dag, "pretrain") == {
        "data": "shards of version 1",
        "more": ["shards of version 2", "shards"],
        "start": [],
        "resume": ["checkpoint of version 2"],
    }
    spec: Any = next(call.spec for call in dag if call.title == "pretrain")
    assert spec.data_weights == [0.25, 0.25, 0.5] and spec.steps == 98  # 200,000 new tokens are half of 98 · 16 · 256
    assert inputs(dag, "gather") == {"corpora": ["corpus of version 1", "corpus of version 2"], "newest": "increment"}
    assert inputs(dag, "evaluate-champion") == inputs(dag, "evaluate-base") | {"model": SERVING}
    assert inputs(dag, "decide") == {"reports": ["evaluate-base", "evaluate-champion"]}


def test_the_text_of_several_generations_or_of_one_that_lost_documents_is_put_together_anew() -> None:
    sets = [replayed(1, 2), replayed(3, whole=False), replayed(4)]
    dag = trained(recipe(), later(accepted=[1, 2, 3, 4], data_sets=sets))
    assert inputs(dag, "pretrain")["more"] == ["compact-2", "shards of version 4", "shards"]
    assert inputs(dag, "compact-1") == {
        "data": ["shards of version 1", "shards of version 2"], "corpora": [], "newest": []
    }  # fmt: skip
    assert inputs(dag, "compact-2") == {
        "data": ["shards of version 3"], "corpora": ["corpus of version 3"], "newest": ["increment"]
    }  # fmt: skip
    of_card = inputs(dag, "publish")["parts"]
    assert [of_card[f"shards_{number}"] for number in (1, 2, 3)] == ["compact-1", "compact-2", "shards of version 4"]
    assert "corpus_1" not in of_card and of_card["corpus_3"] == "corpus of version 4"


def test_what_is_known_is_what_every_generation_was_made_from() -> None:
    read = recipe()
    assert inputs(found(read, read.corpus, [1, 2]), "increment")["known"] == [
        of_version("corpus", 1),
        of_version("corpus", 2),
    ]


def test_a_metric_of_lm_eval_is_looked_up_in_the_champion_s_evaluation_before_anything_is_trained() -> None:
    dag = trained(recipe(**EXAM), later())
    assert titles(dag)[2:5] == ["evaluate-champion", "check-metric", "pretrain"]
    assert next(call.after for call in dag if call.title == "pretrain") == ("check-metric",)
    # the names of other metrics are known before the run
    assert "check-metric" not in titles(trained(recipe(), later()))
    assert "check-metric" not in titles(trained(recipe(**EXAM), later(has_champion=False)))


def test_a_refresh_tunes_the_base_and_compares_the_last_model() -> None:
    dag = refreshed(recipe(), [1, 3], newest=3, has_champion=True)
    assert titles(dag) == [
        "corpus",
        "rows-statements",
        "rewards",
        "sft",
        "dpo",
        "grpo",
        "evaluate-grpo",
        "evaluate-champion",
        "decide",
        "publish",
        "promote",
        "report",
    ]
    assert inputs(dag, "corpus") == {
        "corpora": ["corpus of version 1", "corpus of version 3"],
        "newest": "corpus of version 3",
    }
    assert inputs(dag, "sft")["model"] == BASE
    assert inputs(dag, "publish") == {
        "model": "grpo", "models": [BASE], "reports": ["evaluate-grpo"],
        "parts": {"corpus": "corpus", "rows_1": "rows-statements"},
    }  # fmt: skip
    assert next(call.spec.name for call in dag if call.title == "publish") == "baton-continuous-tuned"  # type: ignore[attr-defined]


def test_a_stage_of_one_s_own_is_made_from_what_the_refresh_has() -> None:
    merged = {"name": "merged", "stage": "merge.py:merge", "inputs": ["base", "grpo", "corpus"]}
    dag = refreshed(recipe(stages=[merged]), [1], newest=1, has_champion=False)
    assert inputs(dag, "merged") == {"inputs": {"base": BASE, "grpo": "grpo", "corpus": "corpus"}}
    assert inputs(dag, "decide") == {"reports": ["evaluate-merged"]}


def test_each_title_is_another_and_inputs_are_earlier_calls_or_in_the_ledger() -> None:
    for dag in (trained(recipe(**EXAM), later()), refreshed(recipe(), [1, 2], 2, has_champion=True)):
        known = {"increment", "tokenizer", "shards", SERVING, BASE}
        known |= {of_version(part, version) for part in ("corpus", "shards", "checkpoint") for version in (1, 2)}
        for call in dag:
            assert call.titles() | {*call.after} <= known
            assert call.title not in known
            known.add(call.title)
