"""Two executions, recorded as stages record themselves: real manifests, real uploads, no engine.

`laptop` makes everything; `laptop again` reuses the data from the cache, and has another learning rate and an SFT that
fails. `record_hostile` records malicious names.
"""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from baton.infra.paths import baton_home
from baton.infra.tracking.execution import begin_execution, close_execution, end_execution
from baton.infra.tracking.push import push_execution
from baton.infra.tracking.record import note_cached, tracked
from baton.infra.tracking.spool import execution_folder
from baton.infra.tracking.store import tracking_uri
from baton.tasks.artifacts import shown
from baton.tasks.core.manifest import write_manifest

LAPTOP = {"name": "laptop", "seed": 1, "pretrain": {"optimizer": {"lr": 0.003}, "steps": 20}, "sources": ["a", "b"]}
HOSTILE = "<script>alert(1)</script>'\"><img src=x onerror=alert(2)>"
PATHS = "../../../../etc/passwd"
LONG = "very-" * 400 + "long"
UNICODE = "ünïcödé \u202e 模型 🙂"


SHARE = {"unit": "share", "higher_is_better": True, "count": 400}


def scored(label: str, right: float) -> dict[str, Any]:
    """Return the facts of an evaluation."""
    return {
        "label": label,
        "headline": "sums.right",
        "metrics": {
            "bits_per_byte": {
                "value": 1.5,
                "unit": "bits per byte",
                "higher_is_better": False,
                "standard_error": 0.01,
                "count": 40,
            },
            "sums.right": SHARE | {"value": right, "standard_error": 0.02},
        },
    }


@dataclass
class Stored:
    """The recorded executions, with the digests of their outputs by stage."""

    home: Path
    uri: str
    first: str  # execution ids
    second: str
    digests: dict[str, str] = field(default_factory=dict)  # outputs of the first execution
    others: dict[str, str] = field(default_factory=dict)  # outputs of the second execution


def record() -> Stored:
    """Record both executions into the store of this process's Baton home."""
    first = begin_execution("laptop", LAPTOP, settings={"name": "laptop", "pretrain": {"steps": 20}})
    digests = _chain({}, lr=0.003)
    end_execution()
    second = begin_execution("laptop again", LAPTOP | {"pretrain": {"optimizer": {"lr": 0.001}, "steps": 20}})
    others = {}
    for title, kind in (("corpus", "corpus"), ("tokenizer", "tokenizer"), ("shards", "tokenized_corpus")):
        inputs = {
            name: digests[name] for name in {"tokenizer": ["corpus"], "shards": ["corpus", "tokenizer"]}.get(title, [])
        }
        facts = {"documents": 7, "vocab_size": 512, "tokens": 3_600_000}
        note_cached(title, kind, digests[title], facts, inputs=inputs, job_dir=_job(title), shown=shown(kind, facts))
        others[title] = digests[title]
    others = _chain(others, lr=0.001, fails="sft")
    end_execution("FAILED")
    for id in (first, second):
        deliver(id)
    client = MlflowClient(tracking_uri())
    client.create_registered_model("baton-laptop")
    for label in ("convert", "sft"):
        client.create_model_version(
            "baton-laptop",
            source=_job(label).as_uri(),
            tags={"baton.digest": "p" * 64, "baton.model": digests[label], "baton.eval.sums.right": "0.25"}
            | {"baton.metric.sums.right": json.dumps(SHARE)},
        )
    client.set_registered_model_alias("baton-laptop", "champion", "2")
    for key, value in (("outcome", "promoted"), ("decision.words", "Promoted: <better> by 3.00 %.")):
        client.set_model_version_tag("baton-laptop", "2", f"baton.{key}", value)
    client.set_model_version_tag("baton-laptop", "1", "baton.outcome", "promoted")
    client.set_model_version_tag("baton-laptop", "2", "baton.parent", "0")  # not made from version 1
    close_execution()
    return Stored(baton_home(), tracking_uri(), first, second, digests, others)


def record_hostile() -> str:
    """Record an execution in which every name is malicious; returns its id."""
    id = begin_execution(HOSTILE, {"name": LONG, "path": PATHS, HOSTILE: UNICODE})
    job = Path("/etc")
    with tracked(UNICODE, job, spec={HOSTILE: PATHS}, inputs={PATHS: "f" * 64}, command=HOSTILE) as made:
        made.log_output(HOSTILE, HOSTILE, {"label": PATHS, LONG: HOSTILE})
    with tracked(LONG, baton_home() / ".." / "..", spec={}, inputs={HOSTILE: HOSTILE}) as made:
        made.log_output("hf_model", "e" * 64, {"label": HOSTILE})
    end_execution()
    deliver(id)
    close_execution()
    return id


def deliver(id: str) -> None:
    """Upload all records of an execution, which a thread may be uploading already."""
    deadline = time.monotonic() + 60
    while not push_execution(execution_folder(id)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _chain(made: dict[str, str], lr: float, fails: str = "") -> dict[str, str]:
    stages: list[tuple[str, str, list[str], dict[str, Any], dict[str, Any]]] = [
        ("corpus", "corpus", [], {"source": {"kind": "stdlib"}}, {"documents": 7}),
        ("tokenizer", "tokenizer", ["corpus"], {"vocab_size": 512}, {"vocab_size": 512}),
        ("shards", "tokenized_corpus", ["corpus", "tokenizer"], {}, {"tokens": 3_600_000}),
        ("pretrain", "megatron_checkpoint", ["shards"], {"optimizer": {"lr": lr}, "steps": 20}, {"step": 20}),
        ("convert", "hf_model", ["pretrain", "tokenizer"], {}, {"label": "base", "parameters": 5_800_000}),
        ("evaluate-base", "eval_report", ["convert", "corpus"], {}, scored("base", 0.1)),
        ("sft", "hf_model", ["convert", "corpus"], {"steps": 3}, {"label": "sft", "parameters": 5_800_000}),
        ("evaluate-sft", "eval_report", ["sft", "corpus"], {}, scored("sft", 0.25)),
    ]
    for title, kind, parents, spec, facts in stages:
        if title in made or any(parent not in made for parent in parents):
            continue
        if kind == "eval_report":
            facts = facts | {"model_digest": made[parents[0]]}
        job = _job(f"{title}-{lr}")
        (job / "output" / "record").mkdir(parents=True)
        (job / "output" / "weights.bin").write_text(f"{title} {lr}")
        sample = {"source": "a.py", "text": HOSTILE, "prompt": "1 + 1 =", "completion": HOSTILE}
        (job / "output" / "record" / "samples.json").write_text(json.dumps([sample]))
        if kind == "eval_report":
            answer = {"evaluator": "sums", "id": "1", "reference": "2", "rewards": {"right": 1.0}, "ended": True}
            (job / "output" / "completions.jsonl").write_text(json.dumps(sample | answer))
        (job / "log.txt").write_text("step 1\nloaded https://me:secret@host/x\n")
        (job / "metrics.jsonl").write_text(
            "".join(
                json.dumps({"step": step, "time": time.time(), "loss": lr + 9 / (1 + step)}) + "\n"
                for step in range(20)
            )
        )
        inputs = {parent: made[parent] for parent in parents}
        try:
            with tracked(title, job, spec=spec, inputs=inputs, command=f"python -m tasks.{title} {job}") as record:
                if title == fails:
                    raise OSError("the disk is full")
                manifest = write_manifest(job / "output", kind, facts, spec, inputs)
                record.log_output(kind, manifest.digest, facts, shown(kind, facts))
                made[title] = manifest.digest
        except OSError:
            pass  # recorded as failed
    return made


def _job(name: str) -> Path:
    return baton_home() / "jobs" / name
