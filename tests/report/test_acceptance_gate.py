import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.core.manifest import Manifest
from baton.tasks.evaluate.artifact import EvalReport
from baton.tasks.evaluate.results import Results, read_results
from baton.tasks.evaluate.scores import score_table
from baton.tasks.pages.blocks import Mark, Table, Text
from baton.tasks.pages.source import Source
from baton.tasks.report.acceptance_gate import Line, compare, unchanged, verdict
from tests.promote.made import metric, seal


def model(label: str, *parents: str) -> Source:
    made_from = {f"input {number}": parent for number, parent in enumerate(parents)}
    return Source(label, Path(), Manifest("hf_model", label, {}, {"label": label}, parents=made_from))


MODELS = [model("base"), model("sft", "corpus", "base"), model("grpo", "corpus", "sft")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def evaluation(
    root: Path, label: str, metrics: Mapping[str, dict[str, Any]], rights: list[float] | None = None
) -> Results:
    """Write an evaluation, with items of `sums.right` if they are given."""
    lines = [
        {"evaluator": "sums", "id": str(number), "rewards": {"right": right}}
        for number, right in enumerate(rights or [])
    ]
    facts = {"label": label, "model_digest": label, "metrics": dict(metrics)}
    files = {"completions.jsonl": "".join(json.dumps(line) + "\n" for line in lines)}
    return read_results(seal(root / label, EvalReport, facts, files))


def line(root: Path, before: dict[str, Any], after: dict[str, Any], *rights: list[float]) -> Line:
    """Compare one metric in two evaluations."""
    old, new = rights or (None, None)
    reports = evaluation(root, "sft", {"sums.right": before}, old), evaluation(root, "grpo", {"sums.right": after}, new)
    (found,) = compare(*reports)
    return found


@pytest.mark.parametrize(
    ("before", "after", "higher_is_better", "found"),
    [
        (0.4, 0.6, True, "better"),
        (0.6, 0.4, True, "worse"),
        (2.0, 1.8, False, "better"),
        (1.8, 2.0, False, "worse"),
        (0.4, 0.6, None, "unknown"),
        (0.40, 0.42, True, "within noise"),
        (0.40, float("nan"), True, "worse"),
        (float("nan"), 0.40, True, "unknown"),
    ],
)
def test_a_change_is_judged_by_the_metrics_direction_and_error(
    root: Path, before: float, after: float, higher_is_better: bool | None, found: str
) -> None:
    old, new = (metric(value, error=0.02, higher_is_better=higher_is_better) for value in (before, after))
    assert line(root, old, new).finding == found


def test_a_change_whose_error_nobody_knows_is_not_judged(root: Path) -> None:
    assert line(root, metric(0.9, error=None), metric(0.2, error=None)).finding == "unknown"


@pytest.mark.parametrize(("prompts", "found"), [(2, "unknown"), (4, "unknown"), (5, "better")])
def test_a_change_on_fewer_prompts_than_a_promotion_needs_is_not_judged(root: Path, prompts: int, found: str) -> None:
    """Their changes are equal, so their standard error is 0."""
    assert line(root, metric(0.0), metric(1.0), [0.0] * prompts, [1.0] * prompts).finding == found


def test_the_best_model_is_marked_where_it_is_known_which_it_is(root: Path) -> None:
    for known, marked in ((True, 1), (None, 0)):
        found = [
            evaluation(root, f"{known}{value}", {"exam.loss": metric(value, higher_is_better=known)})
            for value in (1.0, 2.0)
        ]
        (row,) = score_table(found).rows
        assert sum(isinstance(cell, Mark) and cell.tone == "best" for cell in row) == marked


def test_item_by_item_a_small_change_is_seen_that_the_models_own_errors_would_hide(root: Path) -> None:
    before = [0.0, 1.0] * 50
    after = [right + 0.01 + number / 10_000 for number, right in enumerate(before)]
    diff = line(root, metric(0.5, error=0.05), metric(0.515, error=0.05), before, after)
    assert diff.finding == "better" and diff.difference.value == pytest.approx(0.015, abs=1e-3)
    assert diff.difference.standard_error is not None and diff.difference.standard_error < 0.001


def test_every_tuned_model_has_a_line_and_a_column(root: Path) -> None:
    rights = {"base": 0.1, "sft": 0.4, "grpo": 0.8}
    made = [evaluation(root, label, {"sums.right": metric(right, "share")}) for label, right in rights.items()]
    sft, grpo, table = verdict(MODELS, made)
    assert sft == Text("sft against base, the model it started from: 1 better.")
    assert grpo == Text("grpo against sft, the model it started from: 1 better.")
    assert isinstance(table, Table) and table.columns == ["metric", "sft from base", "grpo from sft"]
    assert table.rows == [["sums.right", *[Mark(f"✓ +{gain}.0 points ± 2.8", "good") for gain in (30, 40)]]]


def test_the_start_is_the_parent_not_the_model_before_it_in_the_list(root: Path) -> None:
    tuned_from_base = [model("base"), model("sft", "base"), model("grpo", "base")]
    made = [evaluation(root, label, {"sums.right": metric(0.5)}) for label in ("base", "sft", "grpo")]
    *_, table = verdict(tuned_from_base, made)
    assert isinstance(table, Table) and table.columns == ["metric", "sft from base", "grpo from base"]


def test_an_adapter_s_base_is_not_the_model_that_it_started_from(root: Path) -> None:
    parents = {"model": "sft", "model.base": "base"}
    tuned = Source("grpo", Path(), Manifest("hf_model", "grpo", {}, {"label": "grpo"}, parents=parents))
    made = [evaluation(root, label, {"sums.right": metric(0.5)}) for label in ("base", "sft", "grpo")]
    said, _ = verdict([tuned], made)
    assert isinstance(said, Text) and said.text.startswith("grpo against sft, the model it started from")


def test_a_merged_model_is_compared_with_each_that_it_was_made_from(root: Path) -> None:
    parents = {"inputs.one": "one", "inputs.base": "base"}
    merged = Source("merged", Path(), Manifest("hf_model", "merged", {}, {"label": "merged"}, parents=parents))
    made = [evaluation(root, label, {"sums.right": metric(0.5)}) for label in ("base", "one", "merged")]
    *_, table = verdict([merged], made)
    assert isinstance(table, Table) and table.columns == ["metric", "merged from base", "merged from one"]


def test_without_the_evaluation_of_the_start_there_is_nothing_to_compare(root: Path) -> None:
    assert verdict(MODELS, [evaluation(root, "grpo", {"sums.right": metric(0.7)})]) == []


def test_a_model_that_its_training_left_as_it_was_is_reported(root: Path) -> None:
    same = Source("grpo", Path(), Manifest("hf_model", "sft", {}, {"label": "grpo"}, parents={"model": "sft"}))
    assert verdict([same], [evaluation(root, "sft", {"sums.right": metric(0.5)})]) == []
    assert unchanged([*MODELS, same]) == [
        "grpo has the same weights as the model it started from: training changed nothing."
    ]


def test_what_is_not_judged_is_named_with_the_reason(root: Path) -> None:
    metrics = {
        "sums.right": metric(0.4, "share"),
        "sums.distinct": metric(0.9, error=None),
        "exam.loss": metric(1.0, higher_is_better=None),
    }
    said, _ = verdict(MODELS[:2], [evaluation(root, label, metrics) for label in ("base", "sft")])
    assert said == Text(
        "sft against base, the model it started from: 1 within noise, 2 unknown (exam.loss: whether more is "
        "better is not known; sums.distinct: no standard error)."
    )


def test_a_metric_that_is_no_number_for_any_model_has_no_best(root: Path) -> None:
    made = [evaluation(root, label, {"sums.right": metric(float("nan"))}) for label in ("base", "sft")]
    assert score_table(made).rows == [["sums.right", "nan", "nan"]]
