"""A model that thinks before it answers is scored by its answer, for rows and for lm-eval's tasks."""

import json
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from baton.infra.process.launch import Engine, run_engine
from baton.tasks.core.manifest import read_manifest, write_manifest
from baton.tasks.evaluate.spec import EvaluateSpec
from baton.tasks.models.tokenizers import load
from baton.tasks.posttrain.encode import RowEncoder
from tests.posttrain.tiny import tiny_model

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("vllm")]  # starts vLLM twice, which takes a minute

ENGINE = Engine("evaluate", "baton.tasks.evaluate.evaluate", "test")
SAID = "<think>It is 7.\n\nno</think>42"
QUESTIONS = [f"What is {number} plus {42 - number}?" for number in range(4)]
TASK = """
dataset_path: json
dataset_kwargs: {data_files: {test: test.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
WHOLE = "def whole(completions, **columns): return [float('7' in one[0]['content']) for one in completions]"
SPEC: dict[str, Any] = {
    "bits_per_byte": None,
    "rows": {"data": "rows", "rewards": ["match", "whole.py:whole"], "temperature": 0.0, "max_new_tokens": 40},
    "none": {"data": "rows", "rewards": ["whole.py:whole"], "temperature": 0.0, "think_end": "</think>"},
    "cut": {"data": "rows", "rewards": ["match", "length"], "temperature": 0.0, "max_new_tokens": 14},
    "tasks": {"lm_eval": ["tasks/line.yaml", "tasks/turn.yaml"], "chat_template": True},
    "scored": {"lm_eval": ["tasks/turn.yaml"], "chat_template": True, "think_end": ""},
}
SPEC["cut"]["rewards"][1] = {"length": {"at_least": 1}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows, tasks, and a model that always gives the same answer."""
    folder = tmp_path_factory.mktemp("thinks")
    (folder / "whole.py").write_text(WHOLE)
    (folder / "tasks").mkdir()
    for name, until in (("line", r"\n\n"), ("turn", "<|im_end|>")):
        kwargs = f'generation_kwargs: {{until: ["{until}"], max_gen_toks: 40, do_sample: false}}'
        (folder / f"tasks/{name}.yaml").write_text(f"task: {name}\n{TASK}{kwargs}\n")
    rows = [{"question": question, "answer": "42"} for question in QUESTIONS]
    (folder / "tasks/test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [{"prompt": [{"role": "user", "content": question}], "answer": "42"} for question in QUESTIONS]
    (folder / "rows").mkdir()
    (folder / "rows/train.jsonl").write_text("")
    (folder / "rows/held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    (folder / "rows/rows.json").write_text("{}")
    write_manifest(folder / "rows", "rows", {})
    learn(tiny_model(folder / "model", dtype="float32", turns=True))
    return folder


def learn(directory: Path) -> None:
    """Train the model to give this answer."""
    model, encoder = AutoModelForCausalLM.from_pretrained(directory), RowEncoder(load(directory))
    turns = [[{"role": "user", "content": question}, {"role": "assistant", "content": SAID}] for question in QUESTIONS]
    rows = [encoder.learned({"messages": each}, "assistant") for each in turns]
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [1] * (longest - len(ids)) for ids, _ in rows])
    labels = torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in rows])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss < 0.05
    facts = read_manifest(directory).facts
    model.save_pretrained(directory)
    encoder.write(directory)
    write_manifest(directory, "hf_model", facts)


@pytest.fixture(scope="module", params=["not known", "known by its template"])
def report(request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    directory = folder / "model"
    if request.param != "not known":
        template = (directory / "chat_template.jinja").read_text()
        (directory / "chat_template.jinja").write_text(template + "{# </think> ends a thought #}")
        write_manifest(directory, "hf_model", read_manifest(directory).facts)
    with chdir(folder):
        spec = EvaluateSpec.model_validate(SPEC).pinned()
    inputs = {"model": directory, "rows.0": folder / "rows"}
    request_ = {
        "stage": "evaluate",
        "kind": "eval_report",
        "spec": spec.model_dump(mode="json"),
        "inputs": {name: {"path": str(path), "digest": read_manifest(path).digest} for name, path in inputs.items()},
    }
    output = run_engine(ENGINE, folder / f"job-{request.param[:3]}", request_, title="evaluate-thinks")
    return dict(json.loads((output / "report.json").read_text()))


def test_rows_and_tasks_have_one_value(report: dict[str, Any]) -> None:
    values = {name: metric["value"] for name, metric in report["metrics"].items()}
    assert values["rows.match"] == values["tasks.line.exact_match"] == values["tasks.turn.exact_match"] == 1.0
    assert values["scored.turn.exact_match"] == 0.0


def test_a_function_gets_thoughts_unless_the_evaluator_names_their_end(report: dict[str, Any]) -> None:
    assert (report["metrics"]["rows.whole"]["value"], report["metrics"]["none.whole"]["value"]) == (1.0, 0.0)


def test_the_report_says_what_was_left_out(report: dict[str, Any]) -> None:
    thoughts = {name: counts.get("thoughts") for name, counts in report["questions"].items()}
    left_out = {name: (each["left_out"], each["open"], each["completions"]) for name, each in thoughts.items() if each}
    assert left_out == {"rows": (4, 0, 4), "none": (4, 0, 4), "cut": (0, 4, 4), "tasks": (8, 0, 8)}
    assert thoughts["tasks"]["ends"] == ["</think>"]
    assert report["metrics"]["cut.match"]["value"] == 0.0
