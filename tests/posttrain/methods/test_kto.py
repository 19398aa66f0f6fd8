"""KTO on a tiny random model."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.core.job import StageError, open_job
from baton.tasks.core.manifest import read_manifest, verify
from baton.tasks.posttrain.encode import RowEncoder
from baton.tasks.posttrain.methods.grpo.spec import GRPOSpec
from baton.tasks.posttrain.methods.kto import KTOSpec, train, unbalanced
from baton.tasks.posttrain.methods.sft import SFTSpec
from baton.tasks.posttrain.spec import PostTrainSpec
from baton.tasks.rows.rows import peek
from baton.tasks.rows.spec import RowsSpec
from tests.posttrain.tiny import (
    metrics,
    repeated_words,
    start,
    tiny_model,
    tiny_rows,
    wait_for_step,
    without_times,
    write_job,
)

SPEC: dict[str, Any] = {
    "data": "twice",
    "steps": 12,
    "batch_size": 8,
    "warmup_steps": 1,
    "learning_rate": 0.003,
    "max_new_tokens": 16,
    "checkpoint_every": 3,
    "precision": "fp32",
    "layout": {"micro_batch": 4},
}


def labelled(count: int) -> list[dict[str, Any]]:
    """Return rows of which every second completion is desirable."""
    rows = repeated_words(count)
    return [
        row | ({"label": True} if number % 2 else {"completion": " no, not this", "label": False})
        for number, row in enumerate(rows)
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def inputs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        "model": model,
        "rows": tiny_rows(tmp_path_factory.mktemp("rows") / "rows", labelled(60), "prompt_completion"),
    }


@pytest.fixture(scope="module")
def tuned(inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = write_job(tmp_path_factory.mktemp("kto") / "job", "kto", SPEC, **inputs)
    assert start("baton.tasks.posttrain.engine", job).wait() == 0, (job / "log.txt").read_text()
    return job


def test_desirable_completions_become_likelier_than_others(tuned: Path, inputs: dict[str, Path]) -> None:
    counted, first, *_, last = metrics(tuned)

    assert (counted["rows"], counted["desirable"]) == (60, 30)
    assert first["loss"] == pytest.approx(0.5) and first["kl"] == 0  # policy and reference are still the same model
    assert last["margin"] > 0.1 and last["loss"] < first["loss"]
    assert verify(tuned / "output").facts == read_manifest(inputs["model"]).facts | {"label": "kto"}


def test_killed_and_restarted_it_makes_the_same_model(tuned: Path, inputs: dict[str, Path], tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", "kto", SPEC, **inputs)
    engine = start("baton.tasks.posttrain.engine", job)
    wait_for_step(job, engine, 8)  # a step of the second epoch
    engine.kill()
    engine.wait()

    assert start("baton.tasks.posttrain.engine", job).wait() == 0, (job / "log.txt").read_text()

    assert json.loads((job / "result.json").read_text()) == json.loads((tuned / "result.json").read_text())
    assert without_times(job) == without_times(tuned)


def test_the_kl_term_does_not_depend_on_the_micro_batch(tuned: Path, inputs: dict[str, Path], tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", "kto", SPEC | {"layout": {"micro_batch": 8}}, **inputs)
    assert start("baton.tasks.posttrain.engine", job).wait() == 0, (job / "log.txt").read_text()

    for one, other in zip(metrics(job)[1:], metrics(tuned)[1:], strict=True):
        assert one["kl"] == pytest.approx(other["kl"], abs=1e-4)
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_preferences_are_a_desirable_completion_and_another(model: Path, tmp_path: Path) -> None:
    preferences = [row | {"chosen": row["completion"], "rejected": " no, not this"} for row in repeated_words(30)]
    rows = tiny_rows(tmp_path / "rows", preferences, "preference")

    job = write_job(tmp_path / "job", "kto", SPEC | {"loss": "apo_zero_unpaired"}, model=model, rows=rows)
    train(open_job(job))

    counted, *_, last = metrics(job)
    assert (counted["rows"], counted["desirable"], last["kl"]) == (30, 30, 0)
    assert last["margin"] > 0.1


def test_a_row_without_a_label_is_refused(model: Path, tmp_path: Path) -> None:
    rows = tiny_rows(tmp_path / "rows", repeated_words(8), "prompt_completion")
    with pytest.raises(StageError, match="without the column label"):
        train(open_job(write_job(tmp_path / "job", "kto", SPEC, model=model, rows=rows)))

    refused = KTOSpec(data="twice").refused({"prompt": "a", "completion": "b", "label": "yes"}, "prompt_completion")
    assert "label: 'yes': true or false expected" in refused


ASKED, SAID = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4."}
SHAREGPT = [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4."}]
SHAPES: dict[str, dict[str, Any]] = {
    "TRL": {"prompt": [ASKED], "completion": [SAID]},
    "messages": {"messages": [ASKED, SAID]},
    "ShareGPT": {"conversations": SHAREGPT},
    "Alpaca": {"instruction": "2 + 2?", "input": "", "output": "4."},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["label", "kto_tag"])
@pytest.mark.parametrize("values", [(True, False), ("true", "False"), (1, 0), (1.0, 0.0)], ids=str)
def test_a_label_arrives(shape: str, name: str, values: tuple[Any, Any], tokenizer: Any, tmp_path: Path) -> None:
    """The labels have the formats of TRL and LLaMA-Factory, and the types that files and libraries use."""
    spec, encoder = KTOSpec(data="liked"), RowEncoder(tokenizer)
    for value, desirable in zip(values, (True, False), strict=True):
        (tmp_path / "rows.jsonl").write_text(json.dumps(SHAPES[shape] | {name: value}))
        first = peek(RowsSpec(path=str(tmp_path / "rows.jsonl")), tmp_path)
        assert first.kind in spec.row_kinds()
        ((_, ids, label),) = spec.encode(first.rows[0], str(first.kind), encoder).answers
        assert label is desirable
        assert tokenizer.decode(ids).startswith("4.")


@pytest.mark.parametrize("label", [{"label": -1}, {"label": 2}, {"label": True, "kto_tag": False}], ids=str)
def test_a_label_that_is_neither_true_nor_false_is_refused_with_its_value(label: dict[str, Any]) -> None:
    refused = KTOSpec(data="liked").refused({"messages": [ASKED, SAID]} | label, "messages")
    assert f"{next(iter(label))}: {next(iter(label.values()))}" in refused
    assert "true or false expected (or 1 or 0)" in refused


@pytest.mark.parametrize("spec", [SFTSpec(data="liked"), GRPOSpec(data="liked")], ids=lambda spec: spec.method.name)
def test_other_methods_refuse_a_conversation_that_was_disliked(spec: PostTrainSpec) -> None:
    row: dict[str, Any] = {"messages": [ASKED, SAID]}
    assert spec.refused(row | {"label": True}, "messages") == ""
    for label in ({"label": False}, {"kto_tag": "false"}, {"label": 0}):
        assert "not to be learned as other rows are" in spec.refused(row | label, "messages")


def test_a_row_without_a_label_is_left_out_of_a_set_that_drops_faulty_rows(model: Path, tmp_path: Path) -> None:
    labelled = [row | {"label": number % 2 == 0} for number, row in enumerate(repeated_words(30))]
    unlabelled = repeated_words(1)[0] | {"prompt": "another ->", "label": None}
    rows = tiny_rows(tmp_path / "rows", [*labelled, unlabelled], "prompt_completion", drops_faulty=True)
    job = write_job(tmp_path / "job", "kto", SPEC | {"loss": "apo_zero_unpaired"}, model=model, rows=rows)
    train(open_job(job))
    assert metrics(job)[0]["rows"] == 30
    assert "1 rows are left out (faulty: drop): label: None" in open_job(job).notices.read_text()


@pytest.mark.parametrize(
    ("desirable", "others", "weights", "message"),
    [
        (50, 50, {}, ""),
        (10, 100, {"desirable_weight": 12.0}, ""),
        (10, 100, {}, "desirable_weight 10 to 13.3 with undesirable_weight 1"),
        (10, 0, {}, "all 10 completions have label True"),
    ],
)
def test_labels_that_the_weights_do_not_balance_are_a_notice(
    desirable: int, others: int, weights: dict[str, float], message: str
) -> None:
    text = unbalanced(desirable, desirable + others, KTOSpec.model_validate({"data": "rows", **weights}))
    assert message in text and bool(message) == bool(text)


def test_the_plan_does_not_tell_epochs_of_rows_whose_kind_it_does_not_know() -> None:
    assert KTOSpec(data="rows").epochs(10, "") == "a preference is two completions"


def test_a_micro_batch_of_one_is_a_problem() -> None:
    (problem,) = KTOSpec.model_validate(SPEC | {"layout": {"micro_batch": 1}}).problems()
    assert problem.path == "layout.micro_batch"
    assert not KTOSpec.model_validate(SPEC | {"layout": {"micro_batch": 1}, "loss": "apo_zero_unpaired"}).problems()
