"""Comparison of two models, and scores over time."""

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from mlflow import MlflowClient
from starlette.testclient import TestClient

from baton.infra.chance import judged
from baton.infra.lineage.app import alone
from baton.infra.lineage.facts import unit_of
from baton.infra.lineage.measured import BITS, SHARED_PARAMETERS
from baton.infra.tracking.execution import begin_execution, end_execution
from baton.infra.tracking.record import tracked
from baton.infra.tracking.store import tracking_uri
from baton.tasks.core.manifest import read_manifest
from baton.tasks.evaluate.artifact import EvalReport
from baton.tasks.evaluate.results import Results, read_results
from baton.tasks.evaluate.samples import samples
from baton.tasks.evaluate.spec import BitsSpec, EvaluateSpec
from baton.tasks.pages.blocks import Mark, Sample
from baton.tasks.report.acceptance_gate import MARKS, compare
from tests.lineage.recorded import SHARE, deliver
from tests.promote.made import seal

REWARD = "def right(completions, **columns):\n    return [len(each) for each in completions]\n"
LONG = REWARD + "".join(f"# line {number}\n" for number in range(2000))  # longer than MLflow accepts


class Store:
    """Records executions of stages. Digests are written as letters."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0
        self.manifests = False  # whether the manifests exist on this machine

    def execution(self, *stages: dict[str, Any]) -> str:
        id = begin_execution("mine", {})
        for stage in stages:
            self.stage(**stage)
        end_execution()
        deliver(id)
        return id

    def stage(
        self, title: str, output: str, kind: str, spec: dict[str, Any] | None = None,
        facts: dict[str, Any] | None = None, **inputs: str,
    ) -> None:  # fmt: skip
        self.number += 1
        read = {name.replace("__", "."): letter * 64 for name, letter in inputs.items()}
        job = self.folder / str(self.number)
        if self.manifests:
            (job / "output").mkdir(parents=True)
            (job / "output" / "manifest.json").write_text(json.dumps({"digest": output * 64, "spec": spec}))
        with tracked(title, job, spec=spec or {}, inputs=read) as record:
            record.log_output(kind, output * 64, facts or {})


def evaluation(of: str, output: str, right: float, rows: str = "r", label: str = "sft", **more: Any) -> dict[str, Any]:
    """Return an evaluation with a standard error of 2 points."""
    measured = SHARE | {"value": right, "standard_error": 0.02}
    facts = {"label": label, "model_digest": of * 64, "metrics": {"sums.right": measured}, "headline": "sums.right"}
    spec = {"seed": 0, "sums": {"data": "sums", "samples": 1} | more}
    return {"title": f"evaluate-{label}", "output": output, "kind": "eval_report", "spec": spec, "facts": facts,
            "model": of, "rows__0": rows}  # fmt: skip


def model(output: str, code: str = REWARD, **inputs: str) -> dict[str, Any]:
    function = {"name": "reward.py:right", "source": {"reward.py": code}}
    spec = {"steps": 3, "rewards": [{"function": function, "weight": 1.0}]}
    return {"title": "grpo", "output": output, "kind": "hf_model", "spec": spec, "facts": {"label": "grpo"}} | inputs


@pytest.fixture
def store(home: Path) -> Store:
    return Store(home / "jobs")


def page(address: str) -> Any:
    return TestClient(alone()).get(f"/lineage/{address}").json()


def compared(a: str, b: str) -> Any:
    return page(f"compare.json?a={a * 64}&b={b * 64}")


@pytest.mark.parametrize(("code", "at_hand"), [(REWARD, False), (LONG, True)])
def test_models_that_differ_by_the_code_of_a_reward_show_its_lines(store: Store, code: str, at_hand: bool) -> None:
    store.manifests = at_hand
    store.execution({"title": "rows", "output": "r", "kind": "rows"}, model("a", code, rows="r"))
    changed = code.replace("    return [len(each)", '    password = "hunter22"\n    return [min(9, len(each))')
    store.execution(model("b", changed, rows="r"))
    found = compared("a", "b")
    assert not found["same"]
    (file,) = found["difference"]["functions"]
    assert file["name"] == "reward.py: grpo"
    assert "-    return [len(each) for each in completions]" in file["lines"]
    assert "+    return [min(9, len(each)) for each in completions]" in file["lines"]
    assert found["difference"]["config"] == [] and "hunter22" not in str(found)


def test_code_that_is_too_long_for_mlflow_differs_by_its_digest(store: Store) -> None:
    """The manifest does not exist on this machine."""
    store.execution(model("a", LONG), model("b", LONG + "# end\n"))
    (pair,) = compared("a", "b")["difference"]["config"]
    assert pair["name"] == "grpo.rewards" and len(pair["a"]) < 300
    assert re.search(r"characters, blake3 [0-9a-f]{32}\)$", pair["a"]) and pair["a"] != pair["b"]


def test_worse_is_said_beyond_the_interval_only(store: Store) -> None:
    store.execution(model("a"), model("b"), model("c"), evaluation("a", "1", 0.50), evaluation("b", "2", 0.46),
                    evaluation("c", "3", 0.40))  # fmt: skip
    (near,), (far,) = (compared("a", other)["metrics"] for other in "bc")
    assert not near["paired"]  # the files of the evaluations are not here
    assert (near["change"], near["verdict"]) == ("−4.0 points ± 5.5", "within noise")
    assert (far["change"], far["verdict"]) == ("−10.0 points ± 5.5", "worse")


def answered(store: Store, label: str, of: str, rewards: list[float], where: Path) -> Results:
    """Record an evaluation with its files."""
    measured = SHARE | {"value": fmean(rewards), "standard_error": 0.08, "count": len(rewards)}
    facts = {"label": label, "model_digest": of * 64, "headline": "sums.right", "metrics": {"sums.right": measured}}
    lines = [
        {"evaluator": "sums", "id": str(number), "prompt": f"{number} + 1 =", "reference": str(number + 1),
         "completion": f"{label} says api_key=hunter22", "rewards": {"right": reward}, "ended": True}
        for number, reward in enumerate(rewards)
    ]  # fmt: skip
    output = where / label / "output"
    seal(output, EvalReport, facts, {"completions.jsonl": "".join(json.dumps(line) + "\n" for line in lines)})
    spec, inputs = {"sums": {"data": "sums"}}, {"model": of * 64}
    with tracked(f"evaluate-{label}", where / label, spec=spec, inputs=inputs) as record:
        record.log_output("eval_report", read_manifest(output).digest, facts)
    return read_results(output)


def test_compare_gives_the_answer_of_the_report(store: Store) -> None:
    """Both compare the same prompts, so that differences in difficulty cancel out, and show the same samples."""
    before = [float(number % 3 == 0) for number in range(100)]
    after = [0.0 if number % 6 == 0 else reward for number, reward in enumerate(before)]
    id = begin_execution("mine", {})
    store.stage(**model("a"))
    store.stage(**model("b"))
    reports = [answered(store, label, of, rewards, store.folder) for label, of, rewards in
               (("base", "a", before), ("sft", "b", after))]  # fmt: skip
    end_execution()
    deliver(id)
    (line,) = compare(*reports)
    found = compared("a", "b")
    (row,) = found["metrics"]
    assert line.cell() == Mark(f"{MARKS[line.finding]} {row['change']}", "bad") and row["paired"]
    assert (row["change"], row["verdict"]) == ("−17.0 points ± 7.4", "worse")
    shown = [block.prompt for block in samples(reports) if isinstance(block, Sample)]
    assert [sample["prompt"] for sample in found["samples"]] == shown and len(shown) == 8
    assert "hunter22" not in str(found["samples"]) and found["samples"][0]["b"]["completion"].startswith("sft says")


def test_a_difference_on_a_few_prompts_is_not_judged(store: Store) -> None:
    few = [evaluation("a", "1", 0.0), evaluation("b", "2", 1.0)]
    for each in few:
        each["facts"]["metrics"]["sums.right"] |= {"standard_error": 0.0, "count": 4}
    store.execution(model("a"), model("b"), *few)
    (row,) = compared("a", "b")["metrics"]
    assert (row["change"], row["verdict"]) == ("+100.0 points", "unknown")


def test_scores_on_other_rows_or_with_other_settings_are_not_compared(store: Store) -> None:
    store.execution(model("a"), model("b"), evaluation("a", "1", 0.5), evaluation("b", "2", 0.4, rows="s"),
                    evaluation("b", "3", 0.3, samples=4))  # fmt: skip
    (row,) = compared("a", "b")["metrics"]
    assert (row["a"], row["b"], row["change"], row["verdict"]) == (0.5, 0.3, "", "other data or settings")
    store.execution(evaluation("b", "4", 0.35))
    (row,) = compared("a", "b")["metrics"]
    assert (row["b"], row["verdict"]) == (0.35, "worse")


def test_scores_of_windows_of_another_length_are_not_compared(store: Store) -> None:
    short = evaluation("b", "2", 0.4)
    short["spec"] |= {"max_model_len": 16}
    whole = evaluation("a", "1", 0.5)
    whole["spec"] |= {"max_model_len": None}
    store.execution(model("a"), model("b"), whole, short)
    (row,) = compared("a", "b")["metrics"]
    assert row["verdict"] == "other data or settings"


def test_every_field_of_an_evaluation_that_changes_its_values_is_compared() -> None:
    assert EvaluateSpec(bits_per_byte=BitsSpec()).identity().keys() == {BITS, *SHARED_PARAMETERS}


def test_scores_over_time_are_not_joined_where_the_data_changed(store: Store) -> None:
    """A champion that is evaluated beside a candidate with the same label does not count as one of the candidate's
    seeds."""
    store.execution(model("a"), evaluation("a", "1", 0.5))
    store.execution(model("b"), evaluation("b", "2", 0.6, rows="s"), evaluation("a", "3", 0.2, rows="s"))
    store.execution(model("c"), evaluation("c", "4", 0.7, rows="s"))
    (right,) = page("metrics.json?recipe=mine")["metrics"]
    assert right["lines"] == {"sft": [[1.0, 0.5], [2.0, 0.6], [3.0, 0.7]]}
    assert right["breaks"] == {"sft": [2]}
    drawn = TestClient(alone()).get("/lineage/metrics?recipe=mine").text
    assert len(re.findall(r'class="(?:line|dot) s0"', drawn)) == 2


def test_a_version_names_every_increment_that_it_was_trained_from(store: Store) -> None:
    store.execution({"title": "increment", "output": "1", "kind": "corpus"},
                    {"title": "pretrain", "output": "p", "kind": "megatron_checkpoint", "data": "1"})  # fmt: skip
    store.execution(
        {"title": "increment", "output": "2", "kind": "corpus", "known__0": "1", "against__0": "e"},
        {"title": "gather", "output": "h", "kind": "corpus", "corpora__0": "1", "newest": "2"},
        {"title": "pretrain", "output": "q", "kind": "megatron_checkpoint", "data": "1", "more__0": "2",
         "resume__0": "p"},
        {"title": "rows", "output": "r", "kind": "rows", "corpora__0": "h"},
        {"title": "sft", "output": "m", "kind": "hf_model", "model": "q", "rows": "r"},
    )  # fmt: skip
    client = MlflowClient(tracking_uri())
    client.create_registered_model("mine")
    client.create_model_version("mine", source="file:///x", tags={"baton.model": "m" * 64})
    (registered,) = page("models.json")["models"]
    assert [origin["digest"][0] for origin in registered["versions"][0]["from"]] == ["1", "2"]


def test_a_change_of_unknown_direction_is_not_judged() -> None:
    unit = unit_of('{"unit": "", "higher_is_better": null, "standard_error": 0.01}')
    assert judged(0.2, unit.standard_error, 100, unit.higher_is_better) == "unknown"


def test_a_reused_evaluation_is_of_the_model_that_this_execution_made(store: Store) -> None:
    """Models with the same files share an evaluation, which has the label of the model that was evaluated first."""
    store.execution(model("a"), evaluation("a", "1", 0.5, label="dpo"))
    (execution,) = page("executions.json")["executions"]
    assert execution["best"]["model"] == "grpo"
