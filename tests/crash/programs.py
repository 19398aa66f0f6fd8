"""The programs whose power cuts are replayed. Each works in a separate folder, `root`; its other inputs are created
once, outside. When it runs again after a power cut, it must end with the same result."""

import faulthandler
import os
import runpy
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from baton.infra.process import launch
from baton.infra.process.launch import Engine, run_engine
from baton.infra.storage.durable import write_text
from baton.tasks.core.manifest import read_manifest, verify

HANGS_S = 120  # maximum duration of an engine
ACKNOWLEDGED = ".acknowledged"  # a folder in the recording that is not part of the disk


@dataclass(frozen=True)
class Program:
    make_inputs: Callable[[Path], None]  # inputs
    run: Callable[[Path, Path], str]  # inputs, root -> the result, which must always be the same
    check: Callable[[Path, Path, Sequence[str]], None]  # inputs, root of a state, what was acknowledged before
    before: Callable[[Path, Path], None] = lambda inputs, root: None  # prepares root before the recording
    noise: tuple[str, ...] = ()  # files whose changes are not different states


def acknowledge(root: Path, what: str) -> None:
    """Record that this result was reported as safe."""
    (root / ACKNOWLEDGED).mkdir(exist_ok=True)
    (root / ACKNOWLEDGED / what).touch()


def check_manifests(inputs: Path, root: Path, acknowledged: Sequence[str]) -> None:
    """Verify all artifacts with a manifest, and check that all acknowledged artifacts exist."""
    for manifest in root.rglob("manifest.json"):
        verify(manifest.parent)
    for digest in acknowledged:
        found = {read_manifest(manifest.parent).digest for manifest in root.rglob("manifest.json")}
        assert digest in found, f"the artifact {digest[:12]} was acknowledged and is missing"


# -- engines --------------------------------------------------------------------------------------


def run_job(root: Path, engine: Engine, kind: str, spec: dict[str, Any], inputs: dict[str, Path]) -> str:
    """Run a stage as its task does; returns the artifact's digest."""
    os.environ["BATON_HOME"] = str(root / "baton")
    words = {name: {"path": str(path), "digest": read_manifest(path).digest} for name, path in inputs.items()}
    digests = {name: entry["digest"] for name, entry in words.items()}
    request = {"stage": engine.stage, "kind": kind, "spec": spec, "inputs": words}
    launch._run = _forked  # type: ignore[assignment]
    output = run_engine(engine, launch.job_directory(engine, spec, digests), request, title=engine.stage)
    digest = verify(output).digest
    acknowledge(root, digest)
    return digest


def _forked(command: list[str], job_dir: Path, title: str, log: IO[bytes], *_: object) -> int:
    """Run the engine in a fork of this process, which has loaded the libraries; they take a while to load."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        sys.argv = command[-2:]
        faulthandler.dump_traceback_later(HANGS_S, exit=True, file=log)
        runpy.run_module(command[-2], run_name="__main__")
        code = 0
    except SystemExit as end:
        print(end, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


ENGINE_NOISE = ("log.txt", "ranks/0.json", "ranks/0.stacks", "progress.json")


# -- pretraining ----------------------------------------------------------------------------------


def _pretrain_inputs(inputs: Path) -> None:
    from tests.pretrain.tiny import make_shards

    make_shards(inputs / "shards")


def _pretrain(inputs: Path, root: Path) -> str:
    from baton.tasks.pretrain.spec import CheckpointPolicy
    from tests.pretrain.tiny import tiny_spec

    policy = CheckpointPolicy(every=2, keep_last=1)
    spec = tiny_spec(steps=6, checkpoints=policy, validate_every=6).model_dump(mode="json")
    return run_job(
        root,
        Engine("pretrain", "baton.tasks.pretrain.train", "1"),
        "megatron_checkpoint",
        spec,
        {"data": inputs / "shards"},
    )


# -- post-training --------------------------------------------------------------------------------


def _sft_inputs(inputs: Path) -> None:
    from tests.posttrain.tiny import repeated_words, tiny_model, tiny_rows

    tiny_model(inputs / "model")
    tiny_rows(inputs / "rows", repeated_words(40), "prompt_completion")


def _sft(inputs: Path, root: Path) -> str:
    spec = {
        "data": "twice",
        "steps": 4,
        "batch_size": 4,
        "layout": {"micro_batch": 4},
        "warmup_steps": 1,
        "learning_rate": 0.01,
        "checkpoint_every": 1,
    }
    parents = {"model": inputs / "model", "rows": inputs / "rows"}
    return run_job(root, Engine("sft", "baton.tasks.posttrain.engine", "1"), "hf_model", spec, parents)


PROGRAMS = {
    "pretrain": Program(_pretrain_inputs, _pretrain, check_manifests, noise=ENGINE_NOISE),
    "sft": Program(_sft_inputs, _sft, check_manifests, noise=ENGINE_NOISE),
}


# -- conversion -----------------------------------------------------------------------------------


def _convert_inputs(inputs: Path) -> None:
    from tests.convert.models import make

    make("qwen3", inputs / "theirs")


def _convert(inputs: Path, root: Path) -> str:
    """Run `baton convert import theirs new/target`, unless a finished run has created the target already."""
    from baton.tasks.core.manifest import content_digest

    target = root / "new" / "target"
    if not target.exists():
        _import(inputs / "theirs", target)
        acknowledge(root, "converted")
    return content_digest(target)


def _import(source: Path, target: Path, replace: bool = False) -> None:
    from baton.tasks.convert.import_model import ImportOptions, import_model, open_hugging_face

    import_model(open_hugging_face(source), target, ImportOptions(replace=replace), lambda done, total: None)


def _check_convert(inputs: Path, root: Path, acknowledged: Sequence[str]) -> None:
    check_manifests(inputs, root, ())
    assert not acknowledged or (root / "new" / "target").exists(), "the conversion was finished and is missing"


def _replace_inputs(inputs: Path) -> None:
    from tests.convert.models import make

    _convert_inputs(inputs)
    _import(inputs / "theirs", inputs / "new")
    _import(make("olmo2", inputs / "other"), inputs / "old")


def _replace_before(inputs: Path, root: Path) -> None:
    """Create the model to be replaced."""
    shutil.copytree(inputs / "old", root / "target")


def _replace(inputs: Path, root: Path) -> str:
    """Run `baton convert import theirs target --replace`."""
    from baton.tasks.core.manifest import content_digest

    _import(inputs / "theirs", root / "target", replace=True)
    acknowledge(root, "replaced")
    return content_digest(root / "target")


def _check_replace(inputs: Path, root: Path, acknowledged: Sequence[str]) -> None:
    """Check that the old or the new model is in one of the places where a user or the next run finds it."""
    from baton.tasks.core.manifest import content_digest

    places = [root / "target", root / "target.partial" / "replaced", root / "target.partial" / "content"]
    found = {content_digest(place) for place in places if place.exists()}
    new = content_digest(inputs / "new")
    assert found & {new, content_digest(inputs / "old")}, "neither the old model nor the new one is there"
    assert not acknowledged or new in found, "the conversion was finished and is missing"


PROGRAMS["convert"] = Program(_convert_inputs, _convert, _check_convert)
PROGRAMS["replace"] = Program(_replace_inputs, _replace, _check_replace, _replace_before)

# -- the registry's files -------------------------------------------------------------------------

MODEL = "crash"
POINTS = 20  # points of the stage's curve


def _home(root: Path) -> Path:
    os.environ["BATON_HOME"] = str(root / "baton")
    return root / "baton"


def _register(root: Path, content: str) -> str:
    from baton.tasks.publish.registry import Publication, register

    digest = content * 64
    return register(Publication(MODEL, None, root / content, digest, "", {}), lambda waited: None)


def _registry_before(inputs: Path, root: Path) -> None:
    """Create a store with one version of a model."""
    _home(root).mkdir()
    _register(root, "a")


def _registry(inputs: Path, root: Path) -> str:
    """Deliver a tracked stage, and then register a version."""
    from baton.infra.tracking.execution import begin_execution, end_execution
    from baton.infra.tracking.push import push_execution
    from baton.infra.tracking.record import tracked
    from baton.infra.tracking.spool import execution_folder
    from tests.tracking.one_execution import write_points

    home = _home(root)
    os.environ["BATON_EXECUTION"] = "20260101-000000-000-abcd"
    begin_execution("crash", {"points": POINTS})
    acknowledge(root, "begun")
    job = home / "jobs" / "curve"
    if job.exists():
        write_text(job / "metrics.jsonl", "")  # an engine that restarts does this
    with tracked("curve", job, spec={"points": POINTS}, inputs={}) as record:
        write_points(job, range(POINTS))
        record.log_output("checkpoint", "c" * 64, {})
    if not end_execution():
        while not push_execution(execution_folder("20260101-000000-000-abcd")):
            time.sleep(0.1)  # another thread is delivering it
    acknowledge(root, "delivered")
    version = _register(root, "b")
    acknowledge(root, "registered")
    return version


def _check_registry(inputs: Path, root: Path, acknowledged: Sequence[str]) -> None:
    """Check that all acknowledged results exist, once the spool was delivered."""
    from mlflow import MlflowClient

    from baton.infra.tracking.__main__ import deliver, undelivered
    from baton.infra.tracking.spool import executions
    from baton.infra.tracking.store import tracking_uri

    _home(root)
    assert not deliver(undelivered()), "the spool cannot be delivered"
    assert "begun" not in acknowledged or executions(), "the execution's record is missing"
    client = MlflowClient(tracking_uri())
    versions = {
        str(found.version): found.tags["baton.digest"] for found in client.search_model_versions(f"name='{MODEL}'")
    }
    assert versions.get("1") == "a" * 64, f"version 1 was registered long ago; the versions are {versions}"
    assert versions.get("2", "b" * 64) == "b" * 64 and len(versions) < 3, versions
    assert "registered" not in acknowledged or "2" in versions, "version 2 was registered and is missing"
    if "delivered" in acknowledged:
        experiment = client.get_experiment_by_name("baton")
        assert experiment is not None
        runs = {run.data.tags["baton.role"]: run for run in client.search_runs([experiment.experiment_id])}
        ended = {role: run.info.status for role, run in runs.items()}
        assert ended == {"execution": "FINISHED", "stage": "FINISHED"}, ended
        points = client.get_metric_history(runs["stage"].info.run_id, "loss")
        assert {point.step for point in points} == set(range(POINTS)), "points of the curve are missing"


def _no_inputs(inputs: Path) -> None:
    pass


PROGRAMS["registry"] = Program(_no_inputs, _registry, _check_registry, _registry_before)
