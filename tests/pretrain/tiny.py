"""A tiny tokenized corpus, and pretraining jobs on it that take seconds on one core."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from baton.tasks.core.manifest import read_manifest, write_manifest
from baton.tasks.data.indexed_dataset import write_index
from baton.tasks.models.model_spec import ModelSpec
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.optimizer_spec import OptimizerSpec
from baton.tasks.pretrain.spec import CheckpointPolicy, PretrainSpec

VOCABULARY = 260
END = 0  # the token that ends a document
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
    """Write shards of increasing numbers with gaps, which a model learns in a few steps."""
    random = np.random.default_rng(0)
    train, held_out = (
        [np.cumsum(random.integers(1, 3, size=100)) % VOCABULARY for _ in range(documents)] for documents in (40, 8)
    )
    return write_shards(folder, train, held_out, tokenizer_digest)


def write_shards(
    folder: Path, train: list[np.ndarray], held_out: list[np.ndarray], tokenizer_digest: str = "0" * 64
) -> Path:
    """Write a sealed TokenizedCorpus of documents, given as token ids. Each document ends with END."""
    folder.mkdir(parents=True)
    for split, documents in (("train", train), ("held_out", held_out)):
        rows = [document.astype("<u2") for document in documents]
        (folder / f"{split}.bin").write_bytes(b"".join(row.tobytes() for row in rows))
        lengths = folder / "lengths"
        np.array([len(row) for row in rows], dtype="<i4").tofile(lengths)
        write_index(folder / f"{split}.idx", lengths, np.dtype(np.uint16))
        lengths.unlink()
    held_out_tokens = sum(map(len, held_out))
    facts = {
        "tokens": sum(map(len, train)),
        "held_out_tokens": held_out_tokens,
        "held_out_bytes": held_out_tokens,
        "vocab_size": VOCABULARY,
        "eos_id": END,
        "tokenizer_digest": tokenizer_digest,
    }
    write_manifest(folder, "tokenized_corpus", facts)
    return folder


def write_job(folder: Path, stage: str, kind: str, spec: dict[str, Any], **inputs: Path) -> Path:
    """Write a job directory as baton.infra.process.launch does."""
    folder.mkdir(parents=True)
    words = {name: {"path": str(path), "digest": read_manifest(path).digest} for name, path in inputs.items()}
    (folder / "spec.json").write_text(json.dumps({"stage": stage, "kind": kind, "spec": spec, "inputs": words}))
    return folder


def pretrain_job(
    folder: Path, data: Path, spec: PretrainSpec, *more: Path, begin: Path | None = None, resume: Path | None = None
) -> Path:
    """Write a pretraining job. `begin` has the weights to start from; `resume` has the run to continue."""
    inputs = {"data": data} | {f"more.{number}": each for number, each in enumerate(more)}
    inputs |= {"start.0": begin} if begin else {}
    inputs |= {"resume.0": resume} if resume else {}
    return write_job(folder, "pretrain", "megatron_checkpoint", spec.model_dump(mode="json"), **inputs)


def start(job: Path) -> subprocess.Popen[bytes]:
    """Start the engine under torchrun, as baton.infra.process.launch does."""
    processes = json.loads((job / "spec.json").read_text())["spec"]["layout"]["processes"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    with (job / "log.txt").open("ab") as log:
        command = [*torchrun, "-m", "baton.tasks.pretrain.train", str(job)]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def train(job: Path) -> None:
    process = start(job)
    assert process.wait(timeout=300) == 0, (job / "log.txt").read_text()[-3000:]


def metrics(job: Path) -> dict[int, dict[str, float]]:
    """Return each step's metrics, without those about speed."""
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines]
    assert steps == sorted(set(steps)), "a step was recorded twice"
    return {line["step"]: {k: v for k, v in line.items() if k in ("loss", "grad_norm", "lr")} for line in lines}
