"""The records in MLflow after a run."""

import json
import math
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mlflow import MlflowClient
from mlflow.utils.validation import _validate_metric_name

from baton.infra.lineage import facts
from baton.infra.lineage.database import open_database
from baton.infra.tracking.code import code_version
from baton.infra.tracking.execution import (
    begin_execution,
    current_execution,
    end_execution,
    execution_id,
    flush,
)
from baton.infra.tracking.mlflow_names import LONGEST, mlflow_name, original_name
from baton.infra.tracking.record import note_cached, tracked
from baton.infra.tracking.spool import read_execution, read_stage
from baton.infra.tracking.store import tracking_uri
from baton.tasks.core.job import Job
from tests.tracking.conftest import curve, runs
from tests.tracking.one_execution import write_points

WAIT_S = 60.0


def test_an_execution_is_a_parent_run_with_a_child_for_each_stage(home: Path, tmp_path: Path) -> None:
    id = begin_execution("pretrain_to_rl", {"name": "laptop", "seed": 1})
    for title in ("tokenizer", "evaluate base"):
        with tracked(title, tmp_path / title, spec={}, inputs={}) as record:
            record.log_output("tokenizer", "t" * 64, {"vocab_size": 4096})
    flush(WAIT_S)
    end_execution(metrics={"sums.right": 0.61})

    (parent,) = runs("execution")
    assert parent.data.tags["baton.execution"] == id
    assert parent.data.params == {"name": "laptop", "seed": "1"}
    assert parent.data.metrics["sums.right"] == 0.61
    assert parent.info.status == "FINISHED"
    children = runs("stage", id)
    assert {child.info.run_name for child in children} == {"tokenizer", "evaluate base"}
    assert all(child.data.tags["mlflow.parentRunId"] == parent.info.run_id for child in children)


def test_a_stage_has_its_parameters_digests_facts_versions_and_duration(home: Path, tmp_path: Path) -> None:
    spec = {"model": {"heads": 4, "rope": {"base": 10000.0}}, "sources": ["a", "b"], "note": None, "text": "x" * 9000}
    with tracked("pretrain", tmp_path / "job", spec=spec, inputs={"data": "d" * 64}) as record:
        record.log_output("megatron_checkpoint", "c" * 64, {"step": 10, "precision": "bf16", "layout": {"tp": 1}})
    flush(WAIT_S)

    (run,) = runs("stage")
    assert run.data.params["model.heads"] == "4"
    assert run.data.params["model.rope.base"] == "10000.0"
    assert run.data.params["sources"] == '["a", "b"]'
    assert run.data.params["note"] == "null"
    assert len(run.data.params["text"]) == 6000  # the maximum length that MLflow accepts
    tags = run.data.tags
    assert tags["baton.input.data"] == "d" * 64
    assert (tags["baton.output.kind"], tags["baton.output"]) == ("megatron_checkpoint", "c" * 64)
    assert tags["baton.fact.precision"] == "bf16"
    assert tags["mlflow.source.git.commit"] == code_version()["commit"]
    assert tags["baton.code.dirty"] in ("true", "false", "unknown")
    assert tags["baton.version.torch"]
    assert run.data.metrics["output/step"] == 10
    assert run.data.metrics["output/layout.tp"] == 1
    assert 0 <= run.data.metrics["duration_s"] < 60
    assert run.info.end_time >= run.info.start_time


def test_the_whole_metric_curve_arrives(home: Path, tmp_path: Path) -> None:
    with tracked("pretrain", tmp_path / "job", spec={}, inputs={}):
        write_points(tmp_path / "job", range(2500))  # more than MLflow accepts in one request
    flush(WAIT_S)
    (run,) = runs("stage")
    assert curve(run, "loss") == [(step, 1 / (step + 1)) for step in range(2500)]


def test_a_loss_that_is_not_a_number_is_shown_as_it_is(home: Path, tmp_path: Path) -> None:
    with tracked("pretrain", tmp_path / "job", spec={}, inputs={}):
        (tmp_path / "job").mkdir()
        (tmp_path / "job" / "metrics.jsonl").write_text('{"step": 1, "time": 5, "loss": NaN, "norm": Infinity}\n')
    flush(WAIT_S)
    (run,) = runs("stage")
    assert math.isnan(curve(run, "loss")[0][1])
    assert curve(run, "norm")[0][1] > 1e300


def test_metrics_arrive_while_the_stage_still_runs(home: Path, tmp_path: Path) -> None:
    with tracked("pretrain", tmp_path / "job", spec={}, inputs={}):
        write_points(tmp_path / "job", range(5))
        flush(WAIT_S)
        (run,) = runs("stage")
        assert run.info.status == "RUNNING"
        assert len(curve(run, "loss")) == 5


def test_a_job_that_a_later_execution_resumes_gives_it_the_whole_curve(home: Path, tmp_path: Path) -> None:
    begin_execution("first", {})
    with pytest.raises(KeyboardInterrupt), tracked("pretrain", tmp_path / "job", spec={}, inputs={}):
        write_points(tmp_path / "job", range(30))
        raise KeyboardInterrupt
    flush(WAIT_S)
    end_execution("KILLED")
    begin_execution("second", {})
    with tracked("pretrain", tmp_path / "job", spec={}, inputs={}):
        write_points(tmp_path / "job", range(20, 50))  # the checkpoint was at step 20, so ten steps are repeated
    flush(WAIT_S)
    end_execution()

    first, second = runs("stage")
    assert (first.info.status, len(curve(first, "loss"))) == ("KILLED", 30)
    assert [step for step, _ in curve(second, "loss")] == list(range(50))


def test_steps_that_a_resumed_engine_takes_again_are_there_once(home: Path, tmp_path: Path) -> None:
    with tracked("pretrain", tmp_path / "job", spec={}, inputs={}):
        write_points(tmp_path / "job", range(30))
        flush(WAIT_S)
        Job(tmp_path / "job", "pretrain", "checkpoint", {}, {}).forget_after(4)  # an earlier resume from step 4
        write_points(tmp_path / "job", range(5, 60))
    flush(WAIT_S)
    (run,) = runs("stage")
    assert [step for step, _ in curve(run, "loss")] == list(range(60))


def test_after_a_roll_back_a_curve_has_the_steps_that_were_trained_in_the_end(home: Path, tmp_path: Path) -> None:
    job = Job(tmp_path / "job", "pretrain", "checkpoint", {}, {})
    job.directory.mkdir()
    with tracked("pretrain", job.directory, spec={}, inputs={}):
        for step in range(1, 11):
            job.metric(step, loss=100.0)
        flush(WAIT_S)
        job.forget_after(4)
        for step in range(5, 15):
            job.metric(step, loss=1.0)
            if step in (7, 12):
                flush(WAIT_S)
    flush(WAIT_S)
    (run,) = runs("stage")
    trained = [100.0] * 4 + [1.0] * 10
    with open_database(tracking_uri()).connect() as connection:
        id, started = run.info.run_id, run.info.start_time / 1000
        assert facts.curves(connection, id)["loss"] == [(float(step), loss) for step, loss in enumerate(trained, 1)]
        assert [loss for _, loss in facts.curves(connection, id, since=started)["loss"]] == trained
    assert len(curve(run, "loss")) == 10 + 10  # MLflow also keeps the points that were rolled back


def test_a_stage_from_the_cache_is_recorded_as_such(home: Path) -> None:
    begin_execution("again", {})
    note_cached(
        "evaluate sft",
        "eval_report",
        "e" * 64,
        {"label": "sft", "metrics": {"sums.pass@2": {"value": 0.75, "unit": "share"}}},
    )
    flush(WAIT_S)
    (run,) = runs("stage")
    assert run.info.status == "FINISHED"
    assert run.data.tags["baton.cached"] == "true"
    assert run.data.tags["baton.output"] == "e" * 64
    assert run.data.metrics["output/sums.pass:at:2"] == 0.75
    assert json.loads(run.data.tags["baton.metric.sums.pass:at:2"])["unit"] == "share"


def test_a_cached_stage_says_what_it_was_made_of_but_not_over_what_was_made_here(home: Path, tmp_path: Path) -> None:
    begin_execution("again", {})
    job = tmp_path / "job"
    note_cached("sft", "hf_model", "e" * 64, {}, spec={"lr": 1}, inputs={"model": "b" * 64}, job_dir=job)
    with tracked("dpo", tmp_path / "dpo", spec={}, inputs={}) as record:
        record.log_output("hf_model", "d" * 64, {})
    note_cached("dpo", "hf_model", "d" * 64, {}, job_dir=tmp_path / "dpo")  # opened again
    flush(WAIT_S)
    # their start times may be equal in MLflow, which stores milliseconds
    by_name = {run.info.run_name: run for run in runs("stage")}
    cached, made = by_name["sft"], by_name["dpo"]
    assert (cached.data.params, cached.data.tags["baton.input.model"]) == ({"lr": "1"}, "b" * 64)
    assert (cached.data.tags["baton.cached"], made.data.tags["baton.cached"]) == ("true", "false")


def test_mlflow_s_own_pages_show_inputs_models_and_their_scores(home: Path, tmp_path: Path) -> None:
    with tracked("sft", tmp_path / "sft", spec={}, inputs={"model": "b" * 64, "corpus": "c" * 64}) as record:
        record.log_output("hf_model", "e" * 64, {"label": "sft"})
    with tracked("evaluate-sft", tmp_path / "eval", spec={}, inputs={"model": "e" * 64}) as record:
        record.log_output(
            "eval_report",
            "f" * 64,
            {"label": "sft", "model_digest": "e" * 64, "metrics": {"sums.pass@2": {"value": 0.25}}},
        )
    flush(WAIT_S)
    (sft,) = [run for run in runs("stage") if run.info.run_name == "sft"]
    told = {each.tags[0].value: each.dataset for each in sft.inputs.dataset_inputs}
    assert {name: dataset.digest for name, dataset in told.items()} == {"model": "b" * 36, "corpus": "c" * 36}
    (model,) = MlflowClient(tracking_uri()).search_logged_models([sft.info.experiment_id])
    assert (model.name, model.source_run_id, model.tags["baton.artifact"]) == ("sft", sft.info.run_id, "e" * 64)
    assert {metric.key: metric.value for metric in model.metrics}["output/sums.pass:at:2"] == 0.25
    assert [each.model_id for each in sft.outputs.model_outputs] == [model.model_id]


def test_a_running_stage_says_how_far_it_is(home: Path, tmp_path: Path) -> None:
    job = Job(tmp_path / "job", "pretrain", "checkpoint", {}, {})
    job.directory.mkdir()
    with tracked("pretrain", job.directory, spec={}, inputs={}, command="python -m baton.tasks.pretrain.train JOB"):
        for done in (10, 20):
            job.progress(done, 40, "steps", loss=2.5)
            flush(WAIT_S)
        (run,) = runs("stage")
    told = json.loads(run.data.tags["baton.progress"])
    assert (told["done"], told["total"], told["unit"], told["first"][0]) == (20, 40, "steps", 10)
    assert told["time"] >= told["first"][1]
    assert run.data.tags["baton.command"] == "python -m baton.tasks.pretrain.train JOB"
    assert run.data.tags["baton.job"] == str(job.directory)


def test_names_reach_mlflow_distinct_and_baton_as_they_were_given(home: Path, tmp_path: Path) -> None:
    given = ["pass@4", "pass_4", "pass 4", "a/b", "/a", "größe", "acc,none", "ä" * 300, "ä" * 301, "x:at:y", "x@y", "."]
    metrics = {name: {"value": float(n), "unit": "share", "higher_is_better": True} for n, name in enumerate(given)}
    spec = {name: n for n, name in enumerate(given)} | {"a.b": "one name", "a": {"b": "two"}}
    with tracked("very-" * 100, tmp_path / "job", spec=spec, inputs={"../x": "a" * 64, "/abs": "b" * 64}) as record:
        points = {name: float(n) for n, name in enumerate(given)}
        lines = (json.dumps({"step": step, "time": time.time(), **points}) + "\n" for step in range(2))
        (tmp_path / "job").mkdir()
        (tmp_path / "job" / "metrics.jsonl").write_text("".join(lines))
        record.log_output("eval_report", "e" * 64, {"metrics": metrics, "headline": "pass@4"})
    flush(WAIT_S)
    (run,) = runs("stage")
    assert len(run.data.params) == len(spec)
    assert {key for key in run.data.tags if key.startswith("baton.input.")} == {"baton.input.../x", "baton.input./abs"}
    with open_database(tracking_uri()).connect() as connection:
        id = run.info.run_id
        shown = facts.metrics(connection, [id])[id]
        assert [shown.get(f"output/{name}") for name in given[:7]] == [float(n) for n in range(7)]
        assert len([name for name in shown if name.startswith("output/")]) == len(given)
        assert facts.metrics(connection, [id], "output/pass@4") == {id: {"output/pass@4": 0.0}}
        assert facts.units(connection, [id])[id].keys() >= {
            "pass@4",
            "pass_4",
            "pass 4",
            "/a",
            "größe",
            "acc,none",
            ".",
        }
        assert facts.curves(connection, id, only=["pass@4", "/a"]).keys() == {"pass@4", "/a"}
        assert len(facts.curves(connection, id)) == len(given)
        params = facts.params(connection, [id])[id]
        assert (params["pass@4"], params['"a.b"'], params["a.b"]) == ("0", "one name", "two")


@given(st.lists(st.text(), unique=True, max_size=3))
@example([":at:", "@", ":3a:"])
@example(["a//b", "a/b", "../a", "/", "..", "", "a/"])
@example(["é", "e\u0301", "A", "a\n", "\ud83d"])
def test_any_name_is_one_that_mlflow_takes_and_comes_back(names: list[str]) -> None:
    stored = [mlflow_name(name) for name in names]
    assert len(set(stored)) == len(names)
    for name, there in zip(names, stored, strict=True):
        _validate_metric_name(f"output/{there}")
        _validate_metric_name(there)
        assert original_name(there) == name or len(there) == LONGEST


def test_a_failed_stage_says_why(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError), tracked("convert", tmp_path / "job", spec={}, inputs={}):
        raise ValueError("logits differ by 0.3\nand\nmuch\nmore\nof\nit")
    flush(WAIT_S)
    (run,) = runs("stage")
    assert run.info.status == "FAILED"
    assert run.data.tags["baton.error"] == "ValueError: logits differ by 0.3\nand\nmuch\nmore\nof"


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143)])
def test_ctrl_c_and_sigterm_end_as_killed(home: Path, tmp_path: Path, stop: BaseException) -> None:
    with pytest.raises(type(stop)), tracked("pretrain", tmp_path / "job", spec={}, inputs={}):
        raise stop
    folder = current_execution("pretrain")
    assert read_stage(folder / "pretrain").status == "KILLED"


def test_a_stage_tried_again_is_the_same_run(home: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError), tracked("sft", tmp_path / "job", spec={"lr": 1}, inputs={}):
        raise OSError("disk full")
    flush(WAIT_S)
    with tracked("sft", tmp_path / "job", spec={"lr": 1}, inputs={}):
        flush(WAIT_S)
        assert runs("stage")[0].info.status == "RUNNING"
    flush(WAIT_S)
    (run,) = runs("stage")
    assert run.info.status == "FINISHED"


def test_two_jobs_of_one_title_are_two_runs(home: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        with tracked("sft", tmp_path / str(seed), spec={"seed": seed}, inputs={}):
            pass
    flush(WAIT_S)
    assert {run.data.params["seed"] for run in runs("stage")} == {"1", "2"}


def test_titles_that_differ_in_punctuation_alone_are_two_runs(home: Path) -> None:
    for title in ("evaluate a_b", "evaluate a-b", "évaluate", "evaluate"):
        note_cached(title, "eval_report", title.encode().hex(), {})
    flush(WAIT_S)
    assert sorted(run.info.run_name for run in runs("stage")) == [
        "evaluate",
        "evaluate a-b",
        "evaluate a_b",
        "évaluate",
    ]


def test_an_execution_given_by_its_id_is_joined(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_EXECUTION", "20260101-000000-abcdef")
    assert execution_id() == "20260101-000000-abcdef"
    with tracked("convert", tmp_path / "job", spec={}, inputs={}):
        pass
    assert read_execution(current_execution("convert")).id == "20260101-000000-abcdef"


def test_the_embedded_store_keeps_files_in_batons_home(home: Path, tmp_path: Path) -> None:
    begin_execution("one", {})
    flush(WAIT_S)
    experiment = MlflowClient(tracking_uri()).get_experiment_by_name("baton")
    assert experiment is not None
    assert experiment.artifact_location == (home / "mlartifacts").as_uri()
