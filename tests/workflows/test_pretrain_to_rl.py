"""The workflow run by `pyflyte run` on a tiny recipe, with every real engine."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest
import yaml

from baton.tasks.core.manifest import read_manifest, verify
from tests.workflows.statements import ASKED, DATA, DPO, GRPO, SFT

PYFLYTE = str(Path(sys.executable).with_name("pyflyte"))
ROOT = Path(__file__).parents[2]
STAGES = (
    *(
        "corpus",
        "tokenizer",
        "shards",
        "pretrain",
        "convert",
        "audit",
        "rows",
        "rewards",
        "sft",
        "dpo",
        "grpo",
        "serve",
        "publish",
    ),
)
LABELS = ("base", "sft", "dpo", "grpo")

TINY: dict[str, Any] = {
    "name": "tiny",
    "corpus": {"source": {"kind": "files", "path": "sources"}, "held_out": 0.3},
    "tokenizer": {"vocab_size": 512},
    "shards": {},
    "pretrain": {
        "model": {"layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 32, "ffn_hidden": 128, "max_positions": 256},
        "sequence_length": 64,
        "global_batch": 8,
        "layout": {"micro_batch": 8},
        "steps": 30,
        "optimizer": {"warmup_steps": 5},
        "checkpoints": {"every": 10},
    },
    "convert": {},
    "evaluate": {"bits_per_byte": {"held_out_bytes": 2000}, "statements": ASKED},
    "data": DATA,
    "post_training": [SFT, DPO, GRPO],
    "serve": {"load": {"concurrency": [1, 4], "requests_per_client": 1, "least_requests": 4, "prompt_tokens": 32, "output_tokens": 8}},
    "publish": {"name": "tiny"},
}  # fmt: skip


def prepare(folder: Path, recipe: dict[str, Any]) -> Path:
    """Write a working folder with a few files of the standard library and the recipe, and return the recipe's path."""
    sources = folder / "sources"
    sources.mkdir(parents=True)
    library = Path(os.__file__).parent
    for name in ("argparse", "ast", "calendar", "configparser", "csv", "difflib", "heapq", "shelve", "shlex", "textwrap", "optparse", "tarfile"):  # fmt: skip
        (sources / f"{name}.py").write_text((library / f"{name}.py").read_text())
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def command(recipe: Path) -> list[str]:
    return [PYFLYTE, "run", str(ROOT / "workflows/pretrain_to_rl.py"), "pretrain_to_rl", "--recipe", str(recipe)]


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"BATON_HOME": str(folder / "baton"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}


def pyflyte(folder: Path, recipe: Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(recipe),
        cwd=cwd or folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )


def output_of(folder: Path, stage: str) -> Path:
    (job,) = (folder / "baton" / "jobs").glob(f"{stage}-*")
    return job / "output"


@pytest.fixture(scope="module")
def run(vllm: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("run")
    done = pyflyte(folder, prepare(folder, TINY))
    assert done.returncode == 0, done.stderr[-5000:] + done.stdout[-3000:]
    return folder, done


def models(folder: Path) -> set[str]:
    """Return the digests of the run's models. Two steps of GRPO whose rewards are all equal do not change its model."""
    return {read_manifest(output_of(folder, stage)).digest for stage in ("convert", "sft", "dpo", "grpo")}


def test_every_stage_leaves_a_whole_artifact(run: tuple[Path, Any]) -> None:
    for stage in STAGES:
        verify(output_of(run[0], stage))


def test_every_model_is_evaluated_the_same_way(run: tuple[Path, Any]) -> None:
    jobs = sorted((run[0] / "baton" / "jobs").glob("evaluate-*"))
    assert {read_manifest(job / "output").parents["model"] for job in jobs} == models(run[0])
    assert len({json.dumps(read_manifest(job / "output").spec) for job in jobs}) == 1


def test_each_artifact_names_its_parents(run: tuple[Path, Any]) -> None:
    def digest(stage: str) -> str:
        return read_manifest(output_of(run[0], stage)).digest

    assert read_manifest(output_of(run[0], "convert")).parents["checkpoint"] == digest("pretrain")
    assert read_manifest(output_of(run[0], "audit")).parents["checkpoint"] == digest("pretrain")
    assert read_manifest(output_of(run[0], "audit")).parents["model"] == digest("convert")
    assert read_manifest(output_of(run[0], "sft")).parents["model"] == digest("convert")
    assert read_manifest(output_of(run[0], "dpo")).parents["model"] == digest("sft")
    assert read_manifest(output_of(run[0], "grpo")).parents["model"] == digest("dpo")
    assert read_manifest(output_of(run[0], "publish")).parents["model"] == digest("grpo")


def test_the_report_is_printed_and_written(run: tuple[Path, Any]) -> None:
    report = output_of(run[0], "report")
    assert (report / "report.html").stat().st_size > 10_000
    assert (report / "report.md").read_text().strip() in run[1].stdout


def test_no_page_of_warnings_reaches_the_terminal(run: tuple[Path, Any]) -> None:
    assert "Warning" not in run[1].stderr + run[1].stdout
    assert len(run[1].stderr.splitlines()) < 60


def test_mlflow_has_a_parent_and_a_child_for_each_stage(run: tuple[Path, Any]) -> None:
    client = mlflow.MlflowClient(f"sqlite:///{run[0] / 'baton' / 'mlflow.db'}")
    (experiment,) = [each for each in client.search_experiments() if each.name != "Default"]
    runs = client.search_runs([experiment.experiment_id])
    parents = [each for each in runs if "mlflow.parentRunId" not in each.data.tags]
    children = [each for each in runs if "mlflow.parentRunId" in each.data.tags]
    assert len(parents) == 1
    assert len(children) == len(STAGES) + len(models(run[0])) + 1  # one for the report
    assert {each.info.status for each in runs} == {"FINISHED"}
    (training,) = [each for each in children if each.data.tags["mlflow.runName"] == "pretrain"]
    assert len(client.get_metric_history(training.info.run_id, "loss")) == 30


def test_the_published_model_is_in_the_registry(run: tuple[Path, Any]) -> None:
    client = mlflow.MlflowClient(f"sqlite:///{run[0] / 'baton' / 'mlflow.db'}")
    assert client.get_model_version("tiny", "1").status == "READY"


def test_a_second_run_finds_every_stage_in_the_cache_and_registers_the_model_again(run: tuple[Path, Any]) -> None:
    folder, _ = run
    jobs = (folder / "baton" / "jobs").glob("*/result.json")
    before = {path: path.stat().st_mtime_ns for path in jobs if not path.parent.name.startswith("publish-")}
    client = mlflow.MlflowClient(f"sqlite:///{folder / 'baton' / 'mlflow.db'}")
    client.delete_registered_model("tiny")
    again = pyflyte(folder, folder / "recipe.yaml")
    assert again.returncode == 0, again.stderr[-3000:]
    assert again.stderr.count("cached") == len(STAGES) + len(LABELS) - 1
    after = {path: path.stat().st_mtime_ns for path in before}
    assert after == before
    assert client.get_model_version("tiny", "1").status == "READY"


def planned(folder: Path, recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the stages that `baton plan` prints in the run's folder, by name."""
    path = folder / "planned.yaml"
    path.write_text(yaml.safe_dump(recipe))
    words = [sys.executable, "-m", "baton", "plan", str(path), "--json"]
    done = subprocess.run(words, cwd=folder, env=environment(folder), check=True, capture_output=True, text=True)
    return {stage["name"]: stage for stage in json.loads(done.stdout)["stages"]}


def test_the_plan_knows_what_the_cache_has(run: tuple[Path, Any]) -> None:
    found = planned(run[0], TINY)
    assert {name for name in found if not found[name]["cached"]} == {"publish", "report"}
    for stage in set(STAGES) - {"publish"}:
        title = "rows-statements" if stage == "rows" else stage  # the title contains the name of the rows
        assert found[title]["cached"] == read_manifest(output_of(run[0], stage)).digest

    changed = planned(run[0], TINY | {"post_training": [SFT, {"dpo": DPO["dpo"] | {"steps": 3}}, GRPO]})
    assert {name for name in changed if not changed[name]["cached"]} == {
        *("dpo", "evaluate-dpo", "grpo", "evaluate-grpo", "serve", "publish", "report")
    }


def test_the_plan_knows_a_model_that_is_started_from(run: tuple[Path, Any]) -> None:
    existing = output_of(run[0], "convert")
    start = {"start_from": {"model": str(existing)}, "data": DATA, "post_training": [SFT]}
    found = planned(run[0], {"corpus": TINY["corpus"], **start})
    assert found["sft"]["need"]["parameters"] == read_manifest(existing).facts["parameters"]


def test_a_run_may_enter_midway_and_stop_early(run: tuple[Path, Any], tmp_path: Path) -> None:
    """The run starts from an existing model, and only publishes it."""
    recipe = {
        "name": "midway",
        "corpus": TINY["corpus"],
        "start_from": {"model": str(output_of(run[0], "convert"))},
        "publish": {"name": "midway"},
    }
    done = pyflyte(tmp_path, prepare(tmp_path, recipe))
    assert done.returncode == 0, done.stderr[-3000:]
    stages = {path.name.rpartition("-")[0] for path in (tmp_path / "baton" / "jobs").iterdir()}
    assert stages == {"corpus", "load_hf", "publish", "report"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", "YAML or JSON: line 1, column 8"),
        ("pretrain: {steps: 0}", "pretrain.steps: 0"),
    ],
)
def test_a_wrong_recipe_ends_before_any_compute(tmp_path: Path, text: str, message: str) -> None:
    """The kinds of problems are tested in test_recipe_text.py and test_bad_recipes.py."""
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    done = pyflyte(tmp_path, path)
    assert done.returncode == 2
    assert message in " ".join((done.stdout + done.stderr).replace("│", " ").split())
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "baton" / "jobs").exists()


@pytest.mark.parametrize(
    "how",
    [pytest.param(signal.SIGINT, marks=pytest.mark.slow), pytest.param(signal.SIGTERM, marks=pytest.mark.long)],
)
def test_an_ended_run_leaves_no_process_and_continues(tmp_path: Path, how: signal.Signals) -> None:
    training = {name: TINY[name] for name in ("name", "corpus", "tokenizer", "shards")}
    training["pretrain"] = TINY["pretrain"] | {"steps": 400, "checkpoints": {"every": 50}}
    training["more_corpora"] = [TINY["corpus"] | {"held_out": 0.4}]  # another split of the same files
    recipe = prepare(tmp_path, training)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command(recipe), cwd=tmp_path, env=environment(tmp_path), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        wait_for_metrics(tmp_path, 20)
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(how)
        assert process.wait(timeout=90) != 0
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
    (job,) = (tmp_path / "baton" / "jobs").glob("pretrain-*")
    assert len(list((job / "work" / "checkpoints").glob("*/manifest.json"))) >= 1

    done = pyflyte(tmp_path, recipe)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "continuing from step" in (job / "log.txt").read_text()
    shards = {read_manifest(path / "output").digest for path in (tmp_path / "baton" / "jobs").glob("shards-*")}
    parents = read_manifest(job / "output").parents
    assert parents.keys() == {"data", "more.0"}
    assert set(parents.values()) == shards


def wait_for_metrics(folder: Path, lines: int) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        for path in (folder / "baton" / "jobs").glob("pretrain-*/metrics.jsonl"):
            if path.read_text().count("\n") >= lines:
                return
        time.sleep(0.1)
    raise AssertionError((folder / "log").read_text()[-3000:])
