"""The names of the metrics of lm-eval tasks, and which of them are means over documents."""

import json
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from baton.tasks.core.job import StageError
from baton.tasks.evaluate.spec import EvaluatorSpec
from tests.evaluate.test_try_tasks import CHOICE, COMMON, FIRST, GENERATE, ROWS, write

BETTER = "aggregation: mean, higher_is_better: true"
FUNCTIONS = """
import statistics
from helpers import half

def score(doc, results):
    return {"right": float(results[0] == doc["answer"]), "pair": (1, len(results[0])), "half": half(results[0])}

def odd_names(doc, results):
    return {"f1, macro.x": 1.0, "my_stderr": 0.5}

def dotted(doc, results):
    return {"a": 1.0, "a.x": 0.0}

def mean_length(pairs):
    return statistics.fmean(length for _, length in pairs)

def distance(predictions, references):
    return abs(len(predictions[0]) - len(references[0]))

def three(doc, results):
    return {"right": 0.0, "half": 0.5, "most": 0.0}

def average(values):
    return statistics.fmean(values)

def largest(values):
    return max(values)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "project" / "tasks"
    made.mkdir(parents=True)
    (made / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (made / "utils.py").write_text(FUNCTIONS)
    (made / "helpers.py").write_text("def half(text):\n    return len(text) / 2\n")
    with chdir(made.parent):
        yield made


def evaluated(*tasks: str, **options: object) -> tuple[set[str], set[str]]:
    """Return the metrics of made-up answers, and those that each document has."""
    from baton.tasks.evaluate.harness import build, load_tasks, run_tasks
    from tests.evaluate.guesses import Guesses

    spec = EvaluatorSpec.model_validate({"lm_eval": [*tasks], "limit": 2} | options)
    loaded = load_tasks("mine", spec.pinned(), Path("copies").absolute())
    guesses = Guesses(loaded.single)
    build(loaded, guesses)
    found = run_tasks(loaded, guesses)
    return {*found.metrics}, {name for item in found.items for name in item["rewards"]}


def names(*tasks: str, **options: object) -> set[str]:
    return evaluated(*tasks, **options)[0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "metrics"),
    [
        (GENERATE, {"exact_match"}),
        (GENERATE + "generation_kwargs: {until: ['\\n'], max_gen_toks: 4}\n", {"exact_match"}),
        (GENERATE + "generation_kwargs: {num_beams: 1, do_sample: false, max_new_tokens: 4}\n", {"exact_match"}),
        (GENERATE + "generation_kwargs: {do_sample: true, top_k: 5, temperature: 0.5}\n", {"exact_match"}),
        (GENERATE + "metric_list: [{metric: chrf}, {metric: exact_match, ignore_case: true}]\n",
         {"chrf", "exact_match"}),
        (GENERATE + "metric_list: [{metric: !function utils.distance, aggregation: mean, higher_is_better: false}]\n",
         {"distance"}),
        (GENERATE + "process_results: !function utils.score\nmetric_list: [{metric: right, aggregation: mean, "
         "higher_is_better: true}, {metric: pair, aggregation: !function utils.mean_length, higher_is_better: true}]\n",
         {"right", "pair", "half"}),
        (GENERATE + "repeats: 2\nfilter_list:\n- {name: first, filter: [{function: take_first}]}\n"
         "- {name: number, filter: [{function: regex, regex_pattern: '(\\d)'}, {function: take_first}]}\n",
         {"exact_match.first", "exact_match.number"}),
        (GENERATE + "process_results: !function utils.odd_names\nmetric_list:\n"
         f"- {{metric: 'f1, macro.x', {BETTER}}}\n- {{metric: my_stderr, {BETTER}}}\n", {"f1, macro.x", "my_stderr"}),
        (GENERATE + f"filter_list: [{{name: 'a,none', {FIRST}}}, {{name: none, {FIRST}}}]\n",
         {"exact_match.a,none", "exact_match"}),
        (CHOICE, {"acc", "acc_norm"}),
        (CHOICE + "metric_list: [{metric: acc}, {metric: f1}, {metric: mcc}, {metric: brier_score}]\n",
         {"acc", "f1", "mcc", "brier_score"}),
        (CHOICE + "num_fewshot: 2\nfewshot_split: train\ndescription: 'Add.'\n", {"acc", "acc_norm"}),
        (COMMON + "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{question}}'\n",
         {"word_perplexity", "byte_perplexity", "bits_per_byte"}),
        (COMMON + "output_type: loglikelihood\ndoc_to_text: '{{question}}'\ndoc_to_target: '{{answer}}'\n",
         {"perplexity", "acc"}),
    ],
)  # fmt: skip
def test_a_metric_has_the_name_of_its_task_and_of_its_filter(config: str, metrics: set[str]) -> None:
    assert names(write(config), chat_template=True) == {f"mine.{name}" for name in metrics}


def test_only_means_over_documents_are_a_document_s() -> None:
    _, found = evaluated(write(CHOICE + "metric_list: [{metric: acc}, {metric: f1}, {metric: mcc}]\n"))
    assert found == {"mine.acc"}


def test_a_maximum_is_no_mean_though_made_up_answers_have_equal_values() -> None:
    listed = ", ".join(
        f"{{metric: {name}, aggregation: {how}, higher_is_better: true}}"
        for name, how in (("right", "mean"), ("half", "!function utils.average"), ("most", "!function utils.largest"))
    )
    _, found = evaluated(write(f"{GENERATE}process_results: !function utils.three\nmetric_list: [{listed}]\n"))
    assert found == {"mine.half", "mine.right"}


def test_two_metrics_of_one_name_are_refused() -> None:
    filters = f"filter_list: [{{name: none, {FIRST}}}, {{name: x, {FIRST}}}]\n"
    listed = f"metric_list: [{{metric: a, {BETTER}}}, {{metric: a.x, {BETTER}}}]\n"
    with pytest.raises(StageError, match=r"mine\.a\.x is the name of two metrics"):
        names(write(f"{GENERATE}{filters}process_results: !function utils.dotted\n{listed}"))


def test_groups_have_the_metrics_of_their_members_and_their_own() -> None:
    for name, config in (("a", GENERATE), ("b", CHOICE), ("c", CHOICE + "tag: [choices]\n")):
        write(config, name)
    write("group: some\ntask: [a, {group: inner, task: [choices], aggregate_metric_list: [{metric: acc}]}, "
          "{task: b, task_alias: B}]\naggregate_metric_list: [{metric: acc}]\n", "some")  # fmt: skip
    found = names("tasks/some.yaml", "tasks/a.yaml", "tasks/c.yaml")
    of_tasks = {"a.exact_match", "b.acc", "b.acc_norm", "c.acc", "c.acc_norm"}
    assert found == {*of_tasks, "some.acc", "some::inner.acc"}


def test_a_tag_names_the_tasks_that_have_it() -> None:
    for name in ("a", "b"):
        write(GENERATE + "tag: both\n", name)
    write("group: some\ntask: [both]\n", "some")
    assert names("tasks/some.yaml") == {"a.exact_match", "b.exact_match"}


def test_tasks_with_helpers_of_one_name_have_each_their_own(folder: Path) -> None:
    for name, factor in (("one", 1), ("two", 2)):
        (folder / name).mkdir()
        (folder / name / "helpers.py").write_text(f"def named(text):\n    return {{'by_{name}': {factor}}}\n")
        (folder / name / "utils.py").write_text(
            "from helpers import named\ndef score(doc, results):\n    return named('')\n"
        )
        (folder / name / "a.jsonl").write_bytes((folder / "a.jsonl").read_bytes())
        metrics = f"metric_list: [{{metric: by_{name}, aggregation: mean, higher_is_better: true}}]\n"
        write(f"task: {name}\n{GENERATE}process_results: !function utils.score\n{metrics}", f"{name}/mine")
    assert names("tasks/one/mine.yaml", "tasks/two/mine.yaml") == {"one.by_one", "two.by_two"}
