"""`pyflyte run` with a placed stage of pretraining or post-training on small data and a tiny model."""

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from baton.infra.tracking.spool import StageRun, read_stage
from tests.placement.world import BIN, REPOSITORY, until
from tests.posttrain.tiny import REWARD, repeated_words, tiny_model

# The laptop recipe up to the Hugging Face model, with smaller numbers; its later stages are not placed here.
RECIPE: dict[str, Any] = {
    "name": "placed",
    "corpus": {"source": {"kind": "files", "path": "sources"}, "held_out": 0.3},
    "tokenizer": {"vocab_size": 512},
    "shards": {},
    "pretrain": {
        "model": {"layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 32, "ffn_hidden": 128},
        "sequence_length": 64,
        "global_batch": 8,
        "layout": {"micro_batch": 4},
        "optimizer": {"warmup_steps": 5},
    },
    "convert": {},
}
TUNING: dict[str, Any] = {
    "data": "twice",
    "steps": 300,
    "batch_size": 8,
    "warmup_steps": 2,
    "learning_rate": 0.003,
    "max_new_tokens": 16,
    "checkpoint_every": 10,
    "precision": "fp32",
}
GRPO = {"steps": 40, "max_new_tokens": 8, "generations": 4, "rewards": ["twice.py:near"], "learning_rate": 0.001}
SHORT = {"steps": 30, "checkpoints": {"every": 10}}
LONG = {"steps": 1500, "checkpoints": {"every": 100}, "validate_every": 500}
ALPHA, BETA = "slurm/alpha/cpu", "slurm/beta/cpu"


def placement(*infra: str, **more: Any) -> dict[str, Any]:
    return {"infra": list(infra), "choose": "in_order", "setup": f". {BIN}/activate", **more}


@dataclass(frozen=True)
class Run:
    """One `pyflyte run` in a separate folder."""

    folder: Path
    process: subprocess.Popen[bytes]
    stage: str = "pretrain"

    @property
    def home(self) -> Path:
        return self.folder / "baton"

    def output(self) -> str:
        """Return the output of the run."""
        return (self.folder / "terminal.txt").read_text()

    def ends(self, timeout_s: float = 1200.0) -> int:
        """Wait for the end of the run, and return its exit code."""
        try:
            return self.process.wait(timeout_s)
        finally:
            self.process.kill()

    def record(self) -> StageRun:
        """Return the record of the stage from the newest execution that placed it or ran it locally."""
        stages = [read_stage(folder) for folder in sorted((self.home / "executions").glob(f"*/{self.stage}"))]
        return [stage for stage in stages if not stage.cached][-1]

    @property
    def digest(self) -> str:
        """The digest of the stage's artifact."""
        output = self.record().output
        assert output is not None, self.output()
        return str(output["digest"])

    def losses(self) -> dict[int, float]:
        """Return the losses by step."""
        return {point["step"]: point["loss"] for point in self._metrics() if point["step"]}

    def reaches(self, step: int) -> None:
        """Wait until the training has reached this number of steps."""
        until(lambda: self.process.poll() is not None or self._steps() >= step, f"step {step}", 600)
        assert self.process.poll() is None, self.output()

    def ctrl_c(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def _steps(self) -> int:
        return max((point["step"] for point in self._metrics()), default=0)

    def _metrics(self) -> list[dict[str, Any]]:
        text = "".join(path.read_text() for path in (self.home / "jobs").glob(f"{self.stage}-*/metrics.jsonl"))
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


_running: list[Run] = []


def end_runs() -> None:
    """Kill the runs that a failed test has left, so that they do not restart their jobs."""
    while _running:
        _running.pop().process.kill()


def done(run: Run) -> Run:
    """Wait for the end of the run, and assert that it succeeded."""
    assert run.ends() == 0, run.output()
    return run


def pids(word: str, run: Run) -> list[int]:
    """Return the ids of the processes of a run's job whose command line contains a word."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:
            continue
        if word.encode() in command and b"BATON_PLACED=" in environment and str(run.home).encode() in environment:
            found.append(int(entry.name))
    return sorted(found)


def start(folder: Path, *changes: dict[str, Any], **environment: str) -> Run:
    """Start the recipe with changes to its pretraining, in a new or used folder."""
    sources = folder / "sources"
    sources.mkdir(parents=True, exist_ok=True)
    for name in ("argparse", "ast", "calendar", "csv", "difflib", "shlex", "tarfile", "textwrap", "zipfile"):
        (sources / f"{name}.py").write_bytes((Path(os.__file__).parent / f"{name}.py").read_bytes())
    recipe = RECIPE | {"pretrain": _changed(RECIPE["pretrain"], *changes)}
    return _started(folder, "pretrain", recipe, environment)


def tune(folder: Path, stage: str, *changes: dict[str, Any]) -> Run:
    """Start post-training's `stage` on the model and rows of tests/posttrain, in a new or used folder."""
    if not (folder / "model").exists():
        tiny_model(folder / "model", dtype="float32")
        rows = repeated_words(60)
        if stage == "dpo":
            rows = [row | {"chosen": row["completion"], "rejected": " no, not this"} for row in rows]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "twice.py").write_text(REWARD)
    recipe = {
        "name": "tuned",
        "start_from": {"model": str(folder / "model")},
        "data": {"twice": {"path": str(folder / "rows.jsonl"), "held_out": 0}},
        "post_training": [{stage: _changed(TUNING, *changes)}],
    }
    return _started(folder, stage, recipe, {"HF_HUB_OFFLINE": "1"})


def _changed(spec: dict[str, Any], *changes: dict[str, Any]) -> dict[str, Any]:
    for change in changes:
        spec = spec | change
    return spec


def _started(folder: Path, stage: str, recipe: dict[str, Any], environment: dict[str, str]) -> Run:
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe))
    words = [str(BIN / "pyflyte"), "run", str(REPOSITORY / "workflows/pretrain_to_rl.py"), "pretrain_to_rl"]
    with (folder / "terminal.txt").open("wb") as terminal:
        process = subprocess.Popen(
            [*words, "--recipe", str(file)],
            cwd=folder,
            env=os.environ | {"BATON_HOME": str(folder / "baton"), "PYTHONPATH": str(REPOSITORY)} | environment,
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=terminal,
        )
    run = Run(folder, process, stage)
    _running.append(run)
    return run
