"""lm-eval tasks are tried before a run, to report those that do not work."""

import json
import re
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from baton.tasks.evaluate.spec import EvaluatorSpec
from baton.tasks.evaluate.try_tasks import Tried, _try, tried

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
    with chdir(made.parent):
        yield made


def here(*tasks: str, **options: object) -> Tried:
    """Try tasks in this process, since importing lm-eval takes seconds."""
    spec = EvaluatorSpec.model_validate({"lm_eval": [*tasks], "limit": 2} | options)
    return _try("mine", spec.pinned(), "", Path.cwd().with_name("tried"))


def write(text: str, name: str = "mine") -> str:
    Path(f"tasks/{name}.yaml").write_text(text if "task:" in text else f"task: {name}\n{text}")
    return f"tasks/{name}.yaml"


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
        (GENERATE.replace("test: a.jsonl", "test: lost.jsonl"), "lost.jsonl.*must be in the folder of its YAML file"),
        (GENERATE + "colour: red\n", "unexpected keyword argument 'colour'"),
        ("task: [a, b]\n" + COMMON, r"mine.yaml: needs `task: <name>` or `group: <name>`"),
    ],
)
def test_what_cannot_run_is_known_before_it_runs(config: str, said: str) -> None:
    found = here(write(config))
    assert re.search(said, found.error), found


# Groups, tags and names


@pytest.mark.parametrize(("name", "said"), [("humaneval", "is marked as unsafe"), ("mmmu_val", "only text tasks")])
def test_shipped_tasks_that_cannot_run_are_known_without_their_data(name: str, said: str) -> None:
    assert said in here(name).error


def test_two_tasks_of_one_name_are_refused() -> None:
    write(GENERATE, "a")
    write("task: a\n" + GENERATE, "b")
    assert "b.yaml: another file has the name 'a' too" in here("tasks/a.yaml", "tasks/b.yaml").error


def test_without_its_data_a_task_is_not_tried_and_the_others_are() -> None:
    found = here("gsm8k", write(GENERATE))
    assert found.untried.startswith("Couldn't reach 'openai/gsm8k' on the Hub")
    assert found.error == ""
    assert "KeyError: 'dev'" in here("gsm8k", write(GENERATE.replace("test_split: test", "test_split: dev"))).error


@pytest.mark.long  # lm-eval reads its 14,000 files
def test_a_misspelled_name_is_reported_with_similar_ones(folder: Path) -> None:
    found = tried("mine", EvaluatorSpec(lm_eval=["gms8k"]))
    assert "'gms8k' is neither a task of lm-eval" in found.error and "did you mean gsm8k" in found.error


def test_a_task_is_tried_in_a_process_of_its_own(folder: Path) -> None:
    (folder / "utils.py").write_text("import os\n\ndef text(doc):\n    os._exit(7)\n")
    found = tried("mine", EvaluatorSpec(lm_eval=[write(GENERATE.replace("'{{question}}'", "!function utils.text"))]))
    assert found.error.startswith("its process exited with code 7")
