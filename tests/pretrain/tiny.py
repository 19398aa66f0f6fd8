"""A tiny tokenized corpus and pretraining jobs on it: seconds on one core."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data.indexed_dataset import write_index
from tasks.manifest import read_manifest, write_manifest
from tasks.pretrain.layout import Layout
from tasks.pretrain.model_spec import ModelSpec
from tasks.pretrain.optimizer_spec import OptimizerSpec
from tasks.pretrain.spec import CheckpointPolicy, PretrainSpec

VOCABULARY = 260
MODEL = ModelSpec(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=16, ffn_hidden=64, max_positions=64)


def tiny_spec(**changes: Any) -> PretrainSpec:
    plain: dict[str, Any] = {
        "model": MODEL,
        "optimizer": OptimizerSpec(lr=1e-2, min_lr=1e-3, warmup_steps=2),
        "sequence_length": 32,
        "global_batch": 4,
        "layout": Layout(micro_batch=2),
        "steps": 8,
        "checkpoints": CheckpointPolicy(every=3),
        "validate_every": 4,
        "validation_sequences": 4,
    }
    return PretrainSpec(**(plain | changes))


def make_shards(folder: Path, tokenizer_digest: str = "0" * 64) -> Path:
    """Rising numbers with gaps: a sequence that a model learns in a few steps."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for split, documents in (("train", 40), ("held_out", 8)):
        rows = [(np.cumsum(random.integers(1, 3, size=100)) % VOCABULARY).astype("<u2") for _ in range(documents)]
        (folder / f"{split}.bin").write_bytes(b"".join(row.tobytes() for row in rows))
        lengths = folder / "lengths"
        np.array([len(row) for row in rows], dtype="<i4").tofile(lengths)
        write_index(folder / f"{split}.idx", lengths, np.dtype(np.uint16))
        lengths.unlink()
    facts = {"tokens": 4000, "held_out_tokens": 800, "held_out_bytes": 800, "vocab_size": VOCABULARY}
    write_manifest(folder, "tokenized_corpus", facts | {"tokenizer_digest": tokenizer_digest}, {}, {})
    return folder


def write_job(folder: Path, stage: str, kind: str, spec: dict[str, Any], **inputs: Path) -> Path:
    """A job directory as infra.launch writes it."""
    folder.mkdir(parents=True)
    words = {name: {"path": str(path), "digest": read_manifest(path).digest} for name, path in inputs.items()}
    (folder / "spec.json").write_text(json.dumps({"stage": stage, "kind": kind, "spec": spec, "inputs": words}))
    return folder


def pretrain_job(folder: Path, data: Path, spec: PretrainSpec) -> Path:
    return write_job(folder, "pretrain", "megatron_checkpoint", spec.model_dump(mode="json"), data=data)


def start(job: Path) -> subprocess.Popen[bytes]:
    """The engine under torchrun, as infra.launch starts it."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    with (job / "log.txt").open("ab") as log:
        command = [*torchrun, "-m", "tasks.pretrain.train", str(job)]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def train(job: Path) -> None:
    process = start(job)
    assert process.wait(timeout=300) == 0, (job / "log.txt").read_text()[-3000:]


def metrics(job: Path) -> dict[int, dict[str, float]]:
    """Each step's metrics, without those that say how fast it was."""
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines]
    assert steps == sorted(set(steps)), "a step was recorded twice"
    return {line["step"]: {k: v for k, v in line.items() if k in ("loss", "grad_norm", "lr")} for line in lines}
