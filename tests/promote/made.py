"""Evaluations and models written by hand, and the engines that run on them in this process."""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from baton.tasks.artifacts import Artifact
from baton.tasks.core.job import Job, open_job
from baton.tasks.core.manifest import read_manifest, write_manifest
from baton.tasks.data.artifact import Corpus
from baton.tasks.evaluate.artifact import EvalReport
from baton.tasks.models.artifact import HFModel
from baton.tasks.pretrain.artifact import MegatronCheckpoint
from baton.tasks.promote.artifact import Decision, Promotion
from baton.tasks.promote.decide import work as decide
from baton.tasks.promote.promote import work as promote
from baton.tasks.publish.artifact import PublishedModel
from baton.tasks.publish.publish import work as publish

NAME = "baton-test"
OLD, NEW = "corpus", "more.0"
RIGHT = "sums.right"  # a reward's metric, which is 0 or 1 for each prompt
CORPUS = {
    "documents": 1, "held_out_documents": 1, "bytes": 5, "held_out_bytes": 5, "duplicates": 0, "empty": 0,
    "invalid_utf8": 0,
}  # fmt: skip
MODEL = {
    "label": "base", "architecture": "Qwen3ForCausalLM", "parameters": 7, "vocab_size": 5, "max_positions": 8,
    "dtype": "bfloat16",
}  # fmt: skip


def seal(directory: Path, kind: type[Artifact], facts: Mapping[str, Any], files: Mapping[str, str]) -> Path:
    """Write an artifact of these files."""
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name).write_text(text)
    write_manifest(directory, kind.kind, dict(facts))
    return directory


def model(directory: Path) -> Path:
    return seal(directory, HFModel, MODEL, {"model.safetensors": directory.name})


def corpus(directory: Path) -> Path:
    return seal(directory, Corpus, CORPUS, {"text": directory.name})


def report(
    directory: Path,
    of: Path,
    bits: Mapping[str, float] | None = None,
    passing: float = 0.5,
    documents: int = 40,
    prompts: int = 300,
    spec: Mapping[str, Any] | None = None,
) -> Path:
    """Write an evaluation of the model `of` with about `bits` bits per byte on each set and a share `passing` of
    correct answers. The documents and prompts are always the same."""
    sizes, luck = random.Random(0), random.Random(directory.name)
    scored = []
    for name, level in (bits or {OLD: 2.0, NEW: 2.0}).items():
        for number in range(documents):
            size = sizes.randint(100, 10_000)
            hardness = sizes.uniform(0.8, 1.2) * luck.uniform(0.99, 1.01)
            scored.append({"set": name, "id": f"{name}-{number}", "bytes": size, "bits": size * level * hardness})
    lines = [
        {"evaluator": "sums", "id": f"sums-{number}", "rewards": {"right": float(luck.random() < passing)}}
        for number in range(prompts)
    ]
    metrics = {
        "bits_per_byte": metric(2.0, "bits per byte", higher_is_better=False),
        RIGHT: metric(passing),
        "sums.distinct": metric(0.9, "share"),
    }
    facts = {"label": "base", "model_digest": read_manifest(of).digest, "metrics": metrics}
    files = {
        "documents.jsonl": "".join(json.dumps(line) + "\n" for line in scored),
        "completions.jsonl": "".join(json.dumps(line) + "\n" for line in lines),
        "report.json": json.dumps(facts | {"spec": {"seed": 0} | dict(spec or {})}),
    }
    return seal(directory, EvalReport, facts, files)


def metric(
    value: float, unit: str = "", *, error: float | None = 0.01, higher_is_better: bool | None = True
) -> dict[str, Any]:
    """Return a metric as it appears in a report."""
    return {
        "value": value, "standard_error": error, "count": 100, "unit": unit, "higher_is_better": higher_is_better,
    }  # fmt: skip


def run(
    work: Callable[[Job], None], kind: type[Artifact], directory: Path, spec: dict[str, Any], **inputs: Path
) -> Path:
    """Run an engine, and return its output; `reports_0` is the input "reports.0"."""
    job_dir(kind, directory, spec, **inputs)
    work(open_job(directory))
    return directory / "output"


def job_dir(kind: type[Artifact], directory: Path, spec: dict[str, Any], **inputs: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    told = {
        name.replace("_", "."): {"path": str(path), "place": str(path), "digest": read_manifest(path).digest}
        for name, path in inputs.items()
    }
    request = {"stage": directory.name, "kind": kind.kind, "spec": spec, "inputs": told}
    (directory / "spec.json").write_text(json.dumps(request))
    return directory


def decided(directory: Path, *reports: Path, **spec: Any) -> Path:
    inputs = {f"reports_{number}": path for number, path in enumerate(reports)}
    return run(decide, Decision, directory, spec, **inputs)


def checkpoint(directory: Path, resumed: Path | None = None) -> Path:
    """Write a checkpoint that was trained from scratch, or from `resumed`."""
    directory.mkdir(parents=True)
    (directory / "weights").write_text(directory.name)
    parents = {"resume.0": read_manifest(resumed).digest} if resumed else {}
    write_manifest(directory, MegatronCheckpoint.kind, {}, {}, parents)
    return directory


def published(directory: Path, of: Path, **parts: Path) -> Path:
    named = {f"parts_{name}": path for name, path in parts.items()}
    return run(publish, PublishedModel, directory, {"name": NAME}, model=of, **named)


def promoted(directory: Path, decision: Path, published: Path) -> Path:
    return run(promote, Promotion, directory, {}, decision=decision, published=published)


def read(output: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((output / name).read_text()))


def day(root: Path, candidate: str, champion: str | None, resumed: str | None = None, **bits: float) -> str:
    """Run all stages of a day on the model `candidate`, trained from the one of the day `resumed`, with these bits
    per byte on the old and the new text. The champion has 2 on both, or `far` on the new text. Return the outcome."""
    made = model(root / candidate)
    levels = {OLD: bits.get("old", 2.0), NEW: bits.get("new", 2.0)}
    reports = [report(root / f"eval-{candidate}", made, levels)]
    if champion:
        theirs = {OLD: 2.0, NEW: bits.get("far", 2.0)}
        reports.append(report(root / f"eval-{champion}-for-{candidate}", root / champion, theirs))
    decision = decided(root / f"decide-{candidate}", *reports)
    trained = checkpoint(root / f"trained-{candidate}", root / f"trained-{resumed}" if resumed else None)
    parts = {"corpus": corpus(root / f"corpus-{candidate}"), "pretrain": trained}
    version = published(root / f"publish-{candidate}", made, **parts)
    promoted(root / f"promote-{candidate}", decision, version)
    return str(read(decision, "decision.json")["outcome"])
