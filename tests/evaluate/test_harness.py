"""Results of lm-eval become metrics; the answers are made up, without an engine."""

import json
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from baton.tasks.core.metric import Metric
from baton.tasks.evaluate.spec import EvaluatorSpec

ROWS = [{"question": f"{n}?", "choices": ["no", "yes"], "label": n % 2, "answer": "yes"} for n in range(6)]
CHOICE = """
dataset_path: json
dataset_kwargs: {data_files: a.jsonl}
test_split: train
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: label
"""
FUNCTIONS = """
import statistics

def percent(doc, results):
    return {"acc": 62.5, "exact_match": 1.0, "f1": ("yes", "no"), "em": 0.5}

def acc(doc, results):
    return {"acc": 62.5}

def losses(doc, results):
    return {"loss": 2.0, "exact_match": 1.0, "mine": 3.0}

def mean(pairs):
    return 50.0
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "tasks" / "utils.py").write_text(FUNCTIONS)
    with chdir(tmp_path):
        yield


def metrics(*tasks: str) -> dict[str, Metric]:
    from baton.tasks.evaluate.harness import build, load_tasks, run_tasks
    from tests.evaluate.guesses import Guesses

    loaded = load_tasks("mine", EvaluatorSpec(lm_eval=[*tasks]).pinned(), Path("copies").absolute())
    guesses = Guesses(loaded.single)
    build(loaded, guesses)
    return run_tasks(loaded, guesses).metrics


def units(*tasks: str) -> dict[str, str]:
    return {name: metric.unit for name, metric in metrics(*tasks).items()}


def write(name: str, text: str) -> str:
    Path(f"tasks/{name}.yaml").write_text(text if text.startswith("group") else f"task: {name}\n{text}")
    return f"tasks/{name}.yaml"


def test_only_metrics_between_0_and_1_are_shares() -> None:
    listed = "metric_list: [{metric: acc}, {metric: f1}, {metric: mcc}, {metric: brier_score}]\n"
    assert units(write("mine", CHOICE + listed)) == {
        "mine.acc": "share",
        "mine.f1": "share",
        "mine.mcc": "",
        "mine.brier_score": "",
    }


def test_a_task_s_own_function_may_give_percentages_under_the_same_names() -> None:
    own = "aggregation: !function utils.mean, higher_is_better: true}"
    listed = f"metric_list: [{{metric: f1, {own}, {{metric: acc, aggregation: mean, higher_is_better: true}}]\n"
    found = metrics(write("mine", f"{CHOICE}process_results: !function utils.percent\n{listed}"))
    assert {name: (metric.value, metric.unit) for name, metric in found.items()} == {
        "mine.acc": (62.5, ""),
        "mine.exact_match": (1.0, "share"),
        "mine.f1": (50.0, ""),
        "mine.em": (0.5, "share"),
    }


def test_a_group_s_metric_is_a_share_if_that_of_every_member_is() -> None:
    write("a", CHOICE)
    write("b", CHOICE)
    write("c", CHOICE + "process_results: !function utils.acc\n")
    for name, members in (("shares", "a, b"), ("mixed", "a, c")):
        write(name, f"group: {name}\ntask: [{members}]\naggregate_metric_list: [{{metric: acc}}]\n")
    assert units("tasks/shares.yaml")["shares.acc"] == "share"
    assert units("tasks/mixed.yaml")["mixed.acc"] == ""


def test_which_direction_is_better_is_not_guessed() -> None:
    """`loss` is listed without a direction, lm-eval knows the direction of `em`, and `mine` is unknown."""
    listed = "process_results: !function utils.losses\nmetric_list: [{metric: loss, aggregation: mean}]\n"
    found = metrics(write("mine", CHOICE + listed))
    assert {name: metric.higher_is_better for name, metric in found.items()} == {
        "mine.loss": None,
        "mine.exact_match": True,
        "mine.mine": None,
    }


def test_a_group_s_metric_counts_the_documents_of_its_tasks() -> None:
    write("a", CHOICE)
    write("b", CHOICE)
    write("both", "group: both\ntask: [a, b]\naggregate_metric_list: [{metric: acc}]\n")
    found = metrics("tasks/both.yaml")
    assert (found["a.acc"].count, found["both.acc"].count) == (len(ROWS), 2 * len(ROWS))


def test_requests_are_rendered_once() -> None:
    """It takes minutes to build the requests of a large task."""
    from baton.tasks.evaluate.harness import build, load_tasks, run_tasks
    from tests.evaluate.guesses import Guesses

    spec = EvaluatorSpec(lm_eval=[write("mine", CHOICE + "num_fewshot: 2\n")], limit=3).pinned()
    loaded = load_tasks("mine", spec, Path("copies").absolute())
    requests = build(loaded, Guesses(loaded.single), seed=7)
    assert len(requests) == 6 and all(request.args[0].count("?") == 3 for request in requests)
    found = run_tasks(loaded, Guesses(loaded.single), seed=7)
    assert [*loaded.single[0].instances] == requests
    assert found.metrics["mine.acc"].count == 3
