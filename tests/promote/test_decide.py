"""The decision (promoted, kept or rejected) and its reasons."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import read_manifest, write_manifest
from baton.tasks.promote.spec import PromotionSpec
from tests.promote.made import NEW, OLD, decided, metric, model, read, report


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    """The candidate and the champion."""
    return model(tmp_path / "candidate"), model(tmp_path / "champion")


def decide(
    root: Path, models: tuple[Path, Path], ours: dict[str, Any], theirs: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    """Decide between two evaluations, and return decision.json. The champion has 2 bits per byte on each set, and
    half of the prompts pass."""
    reports = report(root / "ours", models[0], **ours), report(root / "theirs", models[1], **(theirs or {}))
    return read(decided(root / "decide", *reports, **spec), "decision.json")


def measure(decision: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in decision["measures"] if each["name"] == name]
    return dict(found)


def test_the_first_model_is_promoted(tmp_path: Path, models: tuple[Path, Path]) -> None:
    output = decided(tmp_path / "decide", report(tmp_path / "ours", models[0]))
    assert read(output, "decision.json")["words"] == (
        "Promoted: the first model, there is no champion to compare it with."
    )
    facts = read_manifest(output).facts
    assert (facts["outcome"], facts["champion"], facts["improvement"]) == ("promoted", None, None)
    assert facts["candidate"] == read_manifest(models[0]).digest


def test_what_a_killed_engine_left_is_no_part_of_the_decision(tmp_path: Path, models: tuple[Path, Path]) -> None:
    left = tmp_path / "decide" / "output" / "decision.json.7.partial"
    left.parent.mkdir(parents=True)
    left.write_text('{"outcome": "prom')

    output = decided(tmp_path / "decide", report(tmp_path / "ours", models[0]))

    assert set(read_manifest(output).files) == {"decision.json"}


def test_surely_better_by_the_margin_is_promoted(tmp_path: Path, models: tuple[Path, Path]) -> None:
    found = decide(tmp_path, models, {"bits": {OLD: 1.94, NEW: 1.9}})
    assert found["outcome"] == "promoted"
    assert found["improvement"] == pytest.approx(0.03, abs=0.004) and 0.02 < found["bound"] < found["improvement"]
    assert found["words"].startswith("Promoted: bits per byte on the old text is better than the champion's by ")


def test_better_but_by_less_than_the_margin_is_kept(tmp_path: Path, models: tuple[Path, Path]) -> None:
    found = decide(tmp_path, models, {"bits": {OLD: 1.94, NEW: 1.9}}, margin=0.05)
    assert found["outcome"] == "kept" and "+5.00 % is required" in found["words"]


def test_better_on_so_few_documents_that_it_may_be_chance_is_kept(tmp_path: Path, models: tuple[Path, Path]) -> None:
    few = {"documents": 4}
    found = decide(tmp_path, models, {"bits": {OLD: 1.5, NEW: 1.5}, **few}, few)
    assert found["outcome"] == "kept" and "5 are needed to be sure with 95 % confidence" in found["words"]
    assert found["bound"] is None


def test_the_same_model_again_is_kept(tmp_path: Path, models: tuple[Path, Path]) -> None:
    same = report(tmp_path / "eval", models[0])
    assert read(decided(tmp_path / "decide", same, same), "decision.json")["outcome"] == "kept"


def test_a_corrupted_day_is_rejected_however_well_it_does_on_its_own_text(
    tmp_path: Path, models: tuple[Path, Path]
) -> None:
    found = decide(tmp_path, models, {"bits": {OLD: 2.1, NEW: 0.5}})
    assert found["outcome"] == "rejected"
    assert found["words"].startswith("Rejected: bits per byte on the old text is worse than the champion's by ")
    assert "(allowed: 1.00 %)" in found["words"]


def test_new_text_far_from_the_old_is_a_notice_where_the_rule_allows_it(
    tmp_path: Path, models: tuple[Path, Path]
) -> None:
    levels: dict[str, Any] = {"ours": {"bits": {OLD: 1.9, NEW: 5.0}}, "theirs": {"bits": {OLD: 2.0, NEW: 6.0}}}
    notices = tmp_path / "decide" / "notices.jsonl"
    assert decide(tmp_path, models, **levels, max_new_text_ratio=None)["outcome"] == "promoted"
    assert "times as many bits per byte for the new text as for the old, and the new text counts" in notices.read_text()
    near = {"ours": {"bits": {OLD: 1.9, NEW: 1.9}}, "theirs": {"bits": {OLD: 2.0, NEW: 3.5}}}
    (tmp_path / "near").mkdir()
    assert decide(tmp_path / "near", models, **near)["new_text_ratio"] == pytest.approx(1.75, rel=0.05)
    assert not (tmp_path / "near" / "decide" / "notices.jsonl").exists()


def test_a_regression_of_another_metric_rejects_too(tmp_path: Path, models: tuple[Path, Path]) -> None:
    ours = {"bits": {OLD: 1.9, NEW: 1.9}, "passing": 0.2}
    found = decide(tmp_path, models, ours, regressions={"sums.right": 0.05})
    assert found["outcome"] == "rejected"
    assert "sums.right is worse" in found["words"] and "(allowed: 0.050)" in found["words"]


def test_a_reward_may_be_the_main_metric(tmp_path: Path, models: tuple[Path, Path]) -> None:
    found = decide(tmp_path, models, {"passing": 0.8}, metric="sums.right", margin=0.1)
    assert found["words"].startswith("Promoted: sums.right is better than the champion's by 0.3")
    assert measure(found, "sums.right")["items"] == 300


def test_where_less_is_better_the_lower_one_is_promoted(tmp_path: Path, models: tuple[Path, Path]) -> None:
    reports = [report(tmp_path / name, of, passing=share) for name, of, share in
               (("ours", models[0], 0.2), ("theirs", models[1], 0.5))]  # fmt: skip
    for each in reports:
        less = {"sums.right": metric(0.5, higher_is_better=False), "bits_per_byte": metric(2.0)}
        facts = read_manifest(each).facts | {"metrics": less}
        told = json.loads((each / "report.json").read_text()) | {"metrics": less}
        (each / "report.json").write_text(json.dumps(told))
        write_manifest(each, "eval_report", facts)
    output = decided(tmp_path / "decide", *reports, metric="sums.right", margin=0.1)
    assert read(output, "decision.json")["outcome"] == "promoted"


def test_a_metric_of_unknown_direction_promotes_nothing(tmp_path: Path, models: tuple[Path, Path]) -> None:
    ours = report(tmp_path / "ours", models[0])
    unknown = {"metrics": {"sums.right": metric(0.5, higher_is_better=None)}}
    (ours / "report.json").write_text(json.dumps(json.loads((ours / "report.json").read_text()) | unknown))
    write_manifest(ours, "eval_report", read_manifest(ours).facts | unknown)
    with pytest.raises(StageError, match=r"promote.metric: sums.right: .*set `higher_is_better"):
        decided(tmp_path / "decide", ours, metric="sums.right")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sums.wrong", "has no such metric; it has old.bits_per_byte, .*, sums.right"),
        ("sums.distinct", "it has no values per item"),
    ],
)
def test_a_metric_that_cannot_be_compared_is_an_error_that_names_those_that_can(
    tmp_path: Path, models: tuple[Path, Path], name: str, message: str
) -> None:
    for spec in ({"metric": name}, {"regressions": {name: 0.1}}):
        (field,) = spec
        with pytest.raises(StageError, match=rf"promote.{field}: {name}: .*{message}"):
            decided(tmp_path / field, report(tmp_path / f"of-{field}", models[0]), **spec)


def test_a_regression_that_may_be_chance_keeps(tmp_path: Path, models: tuple[Path, Path]) -> None:
    bounds = {"sums.right": 0.02}
    few = {"prompts": 20}
    found = decide(
        tmp_path,
        models,
        {"bits": {OLD: 1.9, NEW: 1.9}, "passing": 0.35, **few},
        {"passing": 0.5, **few},
        regressions=bounds,
    )
    checks = measure(found, "sums.right")
    assert checks["difference"] < -0.02 <= checks["high"]  # checks that the example is one
    assert found["outcome"] == "kept" and "which may be chance" in found["words"]


def test_without_new_held_out_text_the_old_decides(tmp_path: Path, models: tuple[Path, Path]) -> None:
    found = decide(tmp_path, models, {"bits": {OLD: 1.9}}, {"bits": {OLD: 2.0}})
    assert found["outcome"] == "promoted"
    assert measure(found, "new.bits_per_byte")["items"] == 0
    assert measure(found, "all.bits_per_byte")["difference"] == measure(found, "old.bits_per_byte")["difference"]


def test_a_main_metric_without_items_keeps(tmp_path: Path, models: tuple[Path, Path]) -> None:
    found = decide(tmp_path, models, {"bits": {OLD: 1.9}}, {"bits": {OLD: 2.0}}, metric="new.bits_per_byte")
    assert found["words"] == ("Kept: there is nothing to measure bits per byte on the new text on: the champion stays.")


def test_the_values_are_those_of_all_items_together(tmp_path: Path, models: tuple[Path, Path]) -> None:
    found = decide(tmp_path, models, {})
    rows = [json.loads(line) for line in (tmp_path / "ours" / "documents.jsonl").read_text().splitlines()]
    old = [row for row in rows if row["set"] == OLD]
    bits = sum(row["bits"] for row in old) / sum(row["bytes"] for row in old)
    assert measure(found, "old.bits_per_byte")["candidate"] == pytest.approx(bits)
    assert measure(found, "all.bits_per_byte")["items"] == len(rows) == 2 * len(old)


def edit(report: Path, name: str, old: str, new: str) -> None:
    """Change an evaluation, and seal it again."""
    text = (report / name).read_text()
    assert old in text
    (report / name).write_text(text.replace(old, new, 1))
    facts = read_manifest(report).facts
    write_manifest(report, "eval_report", facts)


def test_a_diverged_model_is_rejected_even_if_it_is_the_first(tmp_path: Path, models: tuple[Path, Path]) -> None:
    ours = report(tmp_path / "ours", models[0])
    bits = json.loads((ours / "documents.jsonl").read_text().splitlines()[0])["bits"]
    edit(ours, "documents.jsonl", json.dumps(bits), "NaN")
    for name, others in (("first", []), ("next", [report(tmp_path / "theirs", models[1])])):
        found = read(decided(tmp_path / name, ours, *others), "decision.json")
        assert found["words"] == "Rejected: old.bits_per_byte of the candidate is not a number."


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("documents.jsonl", "corpus-7", "corpus-x", "40 held-out documents, the champion 40, and 2 of them"),
        ("completions.jsonl", "sums-7", "sums-x", "2 of them only one model has"),
        ("report.json", '"seed": 0', '"seed": 1', "evaluate.seed is 0 for the candidate and 1 for the champion"),
    ],
)
def test_evaluations_of_other_things_are_not_compared(
    tmp_path: Path, models: tuple[Path, Path], name: str, old: str, new: str, message: str
) -> None:
    reports = [report(tmp_path / each, of, {OLD: 2.0} | {NEW: 2.0} if name != "documents.jsonl" else {OLD: 2.0})
               for each, of in zip(("ours", "theirs"), models, strict=True)]  # fmt: skip
    edit(reports[1], name, old, new)
    with pytest.raises(StageError, match="cannot be compared") as refused:
        decided(tmp_path / "decide", *reports)
    assert message in str(refused.value) and "with the same spec on the same corpora" in str(refused.value)


def test_fewer_resamples_than_the_confidence_needs_are_a_problem() -> None:
    (problem,) = PromotionSpec(confidence=0.999, resamples=4_000).problems()
    assert problem.allowed.startswith("at least 10000 for a confidence of 0.999")
    assert not PromotionSpec().problems()


@pytest.mark.parametrize("metric", ["bits_per_byte", "right", "old.bits_per_byte\n", ".right", "sums."])
def test_a_metric_that_is_none_is_refused(metric: str) -> None:
    with pytest.raises(ValueError, match="metric"):
        PromotionSpec(metric=metric)
    with pytest.raises(ValueError, match="regressions"):
        PromotionSpec(regressions={metric: 0.1})
