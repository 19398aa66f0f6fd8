"""Run a data engine without a task, from a job directory with a spec.json."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from baton.tasks.core.job import Job, open_job
from baton.tasks.core.manifest import read_manifest
from baton.tasks.data.documents import SPLITS, name_batches, split_files

KINDS = {
    "corpus": "corpus",
    "tokenizer": "tokenizer",
    "shards": "tokenized_corpus",
    "increment": "corpus",
    "gather": "corpus",
    "compact": "tokenized_corpus",
}


def new_job(directory: Path, stage: str, spec: dict[str, Any], **inputs: Path | list[Path]) -> Job:
    """Create a job directory that is ready to run; a list becomes several inputs, as in `baton.tasks.run.run`."""
    directory.mkdir(parents=True, exist_ok=True)
    named = {
        name if part is given else f"{name}.{index}": part
        for name, given in inputs.items()
        for index, part in enumerate(given if isinstance(given, list) else [given])
    }
    request = {
        "stage": stage,
        "kind": KINDS[stage],
        "spec": spec,
        "inputs": {name: {"path": str(path), "digest": digest(path)} for name, path in named.items()},
    }
    (directory / "spec.json").write_text(json.dumps(request))
    return open_job(directory)


def digest(artifact: Path) -> str:
    return read_manifest(artifact).digest


def facts(artifact: Path) -> dict[str, Any]:
    return read_manifest(artifact).facts


def start(job: Job, cores: int | None = None) -> subprocess.Popen[str]:
    """Start the engine in a separate process, on this many cores."""
    words = [sys.executable, "-m", f"baton.tasks.data.{job.stage}", str(job.directory)]
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:cores])  # inherited by child processes
    try:
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    finally:
        os.sched_setaffinity(0, allowed)


def run(job: Job, cores: int | None = None) -> Path:
    """Run the engine, which must succeed, and return its output."""
    process = start(job, cores)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return job.output


def names_in(corpus: Path) -> list[tuple[str, str]]:
    """Return (id, source) for each document of a corpus."""
    files = [path for split in SPLITS for path in split_files(corpus, split)]
    return [(row["id"], row["source"]) for batch in name_batches(files) for row in batch.to_pylist()]
