from pathlib import Path

import pytest

from tasks.manifest import Manifest
from tasks.report.bar import compare, verdict
from tasks.report.blocks import Table, Text
from tasks.report.source import Source


def model(label: str, *parents: str) -> Source:
    made_from = {f"input {number}": parent for number, parent in enumerate(parents)}
    return Source(label, Path(), Manifest("hf_model", label, {}, {"label": label}, parents=made_from))


def evaluation(label: str, all_checks: float, distinct: float, bits_per_byte: float) -> Source:
    facts = {
        "label": label, "model_digest": label, "all_checks": all_checks, "distinct": distinct,
        "bits_per_byte": bits_per_byte,
    }  # fmt: skip
    return Source(f"eval_{label}", Path(), Manifest("eval_report", "e" + label, {}, facts))


MODELS = [model("base"), model("sft", "corpus", "base"), model("grpo", "corpus", "sft")]
BEFORE = evaluation("sft", 0.40, 0.80, 2.0)


@pytest.mark.parametrize(
    ("all_checks", "distinct", "bits", "met"),
    [
        (0.60, 0.48, 2.19, [True, True, True]),  # just enough of each
        (0.599, 0.48, 2.19, [False, True, True]),
        (0.98, 0.23, 2.1, [True, False, True]),  # the hacked model of FINDINGS
        (0.60, 0.48, 2.20, [True, True, False]),  # "less than 10 %"
        (0.30, 0.90, 1.9, [False, True, True]),
        (0.0, 0.0, 9.0, [False, False, False]),
    ],
)
def test_each_condition_is_judged_by_itself(all_checks: float, distinct: float, bits: float, met: list[bool]) -> None:
    assert [line.met for line in compare(BEFORE, evaluation("grpo", all_checks, distinct, bits))] == met


def test_a_bar_that_is_met_says_so() -> None:
    said, table = verdict(MODELS, [BEFORE, evaluation("grpo", 0.7, 0.6, 2.1)])
    assert said == Text("✓ GRPO against SFT, the model it started from: all three conditions met.", "good")
    assert isinstance(table, Table) and len(table.rows) == 3


def test_a_bar_that_is_missed_says_by_how_much() -> None:
    said, table = verdict(MODELS, [BEFORE, evaluation("grpo", 0.5, 0.6, 2.1)])
    assert said == Text("✗ GRPO against SFT, the model it started from: 2 of 3 conditions met.", "bad")
    assert isinstance(table, Table)
    assert "+10.0 points" in table.rows[0] and "75.0 % kept" in table.rows[1] and "+5.0 %" in table.rows[2]


def test_the_start_is_the_parent_not_the_model_before_it_in_the_list() -> None:
    tuned_from_base = [model("base"), model("sft", "base"), model("grpo", "base")]
    evaluations = [evaluation("base", 0.1, 0.8, 2.0), BEFORE, evaluation("grpo", 0.5, 0.8, 2.0)]
    said, _ = verdict(tuned_from_base, evaluations)
    assert isinstance(said, Text) and "against BASE" in said.text


def test_without_the_evaluation_of_the_start_there_is_no_verdict() -> None:
    (said,) = verdict(MODELS, [evaluation("grpo", 0.7, 0.6, 2.1)])
    assert isinstance(said, Text) and said.tone == "quiet" and "No bar" in said.text


def test_without_grpo_there_is_no_bar() -> None:
    assert verdict(MODELS[:2], [BEFORE]) == []
