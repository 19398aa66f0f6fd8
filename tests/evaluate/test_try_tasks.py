"""lm-eval tasks are tried before a run: what does not work is known then, and so are the names of their metrics."""

import json
import re
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from tasks.evaluate.spec import EvaluatorSpec
from tasks.evaluate.try_tasks import Tried, _try, tried

ROWS = [{"question": f"{n} plus 1?", "answer": str(n + 1), "choices": ["0", str(n + 1)], "label": 1} for n in range(4)]
COMMON = "dataset_path: json\ndataset_kwargs: {data_files: {train: a.jsonl, test: a.jsonl}}\ntest_split: test\n"
GENERATE = f"{COMMON}output_type: generate_until\ndoc_to_text: '{{{{question}}}}'\ndoc_to_target: '{{{{answer}}}}'\n"
CHOICE = (
    f"{COMMON}output_type: multiple_choice\ndoc_to_text: '{{{{question}}}}'\ndoc_to_choice: '{{{{choices}}}}'\n"
    "doc_to_target: label\n"
)
BETTER = "aggregation: mean, higher_is_better: true"
FIRST = "filter: [{function: take_first}]"
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

def fails(doc, results):
    return {"number": int(results[0]) / 0}

def broken(doc):
    return doc["nothing"]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    made = tmp_path / "project" / "tasks"
    made.mkdir(parents=True)
    (made / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (made / "utils.py").write_text(FUNCTIONS)
    (made / "helpers.py").write_text("def half(text):\n    return len(text) / 2\n")
    with chdir(made.parent):
        yield made


def here(*tasks: str, **options: object) -> Tried:
    """In this process: importing lm-eval takes seconds."""
    spec = EvaluatorSpec.model_validate({"lm_eval": [*tasks], "limit": 2} | options)
    return _try("mine", spec.pinned(), "", Path.cwd().with_name("tried"))


def write(text: str, name: str = "mine") -> str:
    Path(f"tasks/{name}.yaml").write_text(text if "task:" in text else f"task: {name}\n{text}")
    return f"tasks/{name}.yaml"


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
def test_a_task_s_metrics_are_known_before_it_runs(config: str, metrics: set[str]) -> None:
    found = here(write(config), chat_template=True)
    assert (found.error, found.untried, found.more) == ("", "", [])
    assert set(found.metrics) == {f"mine.{name}" for name in metrics}
    assert not found.may_have("mine.accuracy")


def test_means_over_documents_are_told_apart() -> None:
    found = here(write(CHOICE + "metric_list: [{metric: acc}, {metric: f1}, {metric: mcc}]\n"))
    assert found.per_document == ["mine.acc"]


def test_a_maximum_is_no_mean_though_made_up_answers_have_equal_values() -> None:
    listed = ", ".join(
        f"{{metric: {name}, aggregation: {how}, higher_is_better: true}}"
        for name, how in (("right", "mean"), ("half", "!function utils.average"), ("most", "!function utils.largest"))
    )
    found = here(write(f"{GENERATE}process_results: !function utils.three\nmetric_list: [{listed}]\n"))
    assert found.per_document == ["mine.half", "mine.right"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            GENERATE + "generation_kwargs: {num_beams: 10}\n",
            "generation_kwargs.num_beams: 10: 1, or a task without beam",
        ),
        (GENERATE + "generation_kwargs: {colour: red}\n", "generation_kwargs.colour: 'red': one of do_sample, until"),
        (GENERATE.replace("{{question}}", "{% bad %}"), "TemplateSyntaxError"),
        (GENERATE.replace("test_split: test", "test_split: dev"), "KeyError: 'dev'"),
        (GENERATE.replace("'{{question}}'", "!function utils.broken"), r"KeyError: 'nothing' \(.*utils.py, line \d+: "),
        (GENERATE.replace("'{{question}}'", "!function utils.lost"), "has no function 'lost'"),
        (GENERATE + "doc_to_choice: choices\nunsafe_code: true\n", "marked as unsafe"),
        (GENERATE + "metric_list: [{metric: no_such_metric}]\n", "no_such_metric"),
        (GENERATE + "filter_list: [{name: x, filter: [{function: no_such_filter}]}]\n", "no_such_filter"),
        (GENERATE + "generation_kwargs: [until]\n", r"generation_kwargs \['until'\]: options by name"),
        (GENERATE + "generation_kwargs: {do_sample: 'false'}\n", "generation_kwargs.do_sample: 'false': true or false"),
        (
            GENERATE + "generation_kwargs: {temperature: 3}\n",
            "generation_kwargs.temperature: 3.*: a number from 0 to 2",
        ),
        (GENERATE + "generation_kwargs: {do_sample: true, top_p: 0}\n", "top_p: 0: a number above 0 to 1"),
        (GENERATE + "generation_kwargs: {do_sample: true, top_k: 5.5}\n", "top_k: 5.5: a whole number from 1"),
        (GENERATE + "generation_kwargs: {repetition_penalty: 0}\n", "repetition_penalty: 0: a number above 0"),
        (GENERATE + "generation_kwargs: {presence_penalty: .nan}\n", "presence_penalty: nan: a number from -2 to 2"),
        (GENERATE + "generation_kwargs: {stop_token_ids: [x]}\n", r"stop_token_ids: \['x'\]: ids of tokens"),
        (GENERATE + "generation_kwargs: {bad_words: ['']}\n", "bad_words: .*: texts that are not empty"),
        (GENERATE + "generation_kwargs: {min_tokens: 9, max_gen_toks: 8}\n", "min_tokens: 9: at most max_gen_toks .8."),
        (
            GENERATE + f"filter_list: [{{name: x, {FIRST}}}, {{name: x, {FIRST}}}]\n",
            "filter_list of mine: two filters have the name 'x'",
        ),
        (
            GENERATE + f"filter_list: [{{name: none, {FIRST}}}, {{name: x, {FIRST}}}]\nprocess_results: !function "
            f"utils.dotted\nmetric_list: [{{metric: a, {BETTER}}}, {{metric: a.x, {BETTER}}}]\n",
            "mine.a.x is the name of two metrics",
        ),
        (GENERATE.replace("test: a.jsonl", "test: lost.jsonl"), "lost.jsonl.*must be in the folder of its YAML file"),
        (GENERATE + "colour: red\n", "unexpected keyword argument 'colour'"),
        ("task: [a, b]\n" + COMMON, r"mine.yaml: needs `task: <name>` or `group: <name>`"),
    ],
)
def test_what_cannot_run_is_known_before_it_runs(config: str, said: str) -> None:
    found = here(write(config))
    assert re.search(said, found.error), found


def test_a_function_that_cannot_score_a_made_up_answer_is_no_error() -> None:
    metrics = "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n"
    found = here(write(GENERATE + "process_results: !function utils.fails\n" + metrics))
    assert (found.error, found.metrics) == ("", ["mine.acc"])
    assert "made-up answers raises ValueError: invalid literal" in found.untried or "ZeroDivision" in found.untried
    assert found.may_have("mine.number") and not found.may_have("other.number")


# Groups, tags and names


@pytest.mark.parametrize(("name", "said"), [("humaneval", "is marked as unsafe"), ("mmmu_val", "only tasks of text")])
def test_shipped_tasks_that_cannot_run_are_known_without_their_data(name: str, said: str) -> None:
    assert said in here(name).error


def test_groups_have_the_metrics_of_their_members_and_their_own() -> None:
    for name, config in (("a", GENERATE), ("b", CHOICE), ("c", CHOICE + "tag: [choices]\n")):
        write(config, name)
    write("group: some\ntask: [a, {group: inner, task: [choices], aggregate_metric_list: [{metric: acc}]}, "
          "{task: b, task_alias: B}]\naggregate_metric_list: [{metric: acc}]\n", "some")  # fmt: skip
    found = here("tasks/some.yaml", "tasks/a.yaml", "tasks/c.yaml")
    of_tasks = {"a.exact_match", "b.acc", "b.acc_norm", "c.acc", "c.acc_norm"}
    assert (found.error, set(found.metrics)) == ("", {*of_tasks, "some.acc", "some::inner.acc"})


def test_a_tag_names_the_tasks_that_have_it() -> None:
    for name in ("a", "b"):
        write(GENERATE + "tag: both\n", name)
    write("group: some\ntask: [both]\n", "some")
    assert set(here("tasks/some.yaml").metrics) == {"a.exact_match", "b.exact_match"}


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
    assert here("tasks/one/mine.yaml", "tasks/two/mine.yaml").metrics == ["one.by_one", "two.by_two"]


def test_two_tasks_of_one_name_are_refused() -> None:
    write(GENERATE, "a")
    write("task: a\n" + GENERATE, "b")
    assert "b.yaml: another file has the name 'a' too" in here("tasks/a.yaml", "tasks/b.yaml").error


def test_without_its_data_the_config_says_which_metrics_there_are() -> None:
    found = here("gsm8k", write(GENERATE))
    assert found.untried.startswith("Couldn't reach 'openai/gsm8k' on the Hub")
    assert {"gsm8k.exact_match.strict-match", "mine.exact_match"} < set(found.metrics)
    assert (found.error, found.per_document) == ("", None)
    write("group: some\ntask: [mine, gsm8k]\naggregate_metric_list: [{metric: exact_match}]\n", "some")
    found = here("tasks/some.yaml")
    assert found.untried and {"some.exact_match.strict-match", "some.exact_match"} < set(found.metrics), found


@pytest.mark.long  # lm-eval reads its 14,000 files
def test_a_misspelled_name_is_told_with_similar_ones(folder: Path) -> None:
    found = tried("mine", EvaluatorSpec(lm_eval=["gms8k"]))
    assert "'gms8k' is no task of lm-eval" in found.error and "did you mean gsm8k" in found.error


def test_a_task_is_tried_in_a_process_of_its_own(folder: Path) -> None:
    (folder / "utils.py").write_text("import os\n\ndef text(doc):\n    os._exit(7)\n")
    found = tried("mine", EvaluatorSpec(lm_eval=[write(GENERATE.replace("'{{question}}'", "!function utils.text"))]))
    assert found.error.startswith("its process exited with code 7")
