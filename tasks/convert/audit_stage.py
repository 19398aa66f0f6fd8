"""Run the stage that audits a conversion.

    python -m baton.tasks.convert.audit_stage JOB_DIR

Inputs are `checkpoint`, `model`, and `data`, on whose held-out text both models run; the output is audit.json. An audit
that finds a difference fails, so that stages that depend on the model do not start.
"""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from baton.infra.storage.durable import write_json
from baton.tasks.convert.audit import audit
from baton.tasks.convert.import_model import open_hugging_face
from baton.tasks.convert.megatron_model import open_megatron
from baton.tasks.convert.spec import AuditSpec
from baton.tasks.core.job import Job, StageError, main
from baton.tasks.core.manifest import read_manifest
from baton.tasks.models.errors import ConversionError
from baton.tasks.pretrain import megatron  # noqa: F401  before megatron.core

# isort: split
from megatron.core.datasets.indexed_dataset import IndexedDataset


def work(job: Job) -> None:
    spec = job.spec(AuditSpec)
    disable_progress_bar()
    source, exported = open_megatron(job.input("checkpoint")), open_hugging_face(job.input("model"))
    text = held_out_tokens(job.input("data"), spec.tokens, source.architecture.max_positions)
    result = audit(source, exported, text, spec.bound, lambda what, done, total: job.progress(done, total, what))
    job.empty_output()
    write_json(job.output / "audit.json", asdict(result))
    if result.problems():
        raise ConversionError(result.verdict())
    job.finish(
        tensors=sum(len(entry.parts) for entry in result.weights),
        parameters=result.parameters,
        tokens=result.tokens,
        logits_max_abs_diff=result.logits_max_abs_diff,
        argmax_agreement=result.argmax_agreement,
    )


def held_out_tokens(data: Path, count: int, longest: int) -> Tensor:
    """Return at most `count` tokens of held-out text, (sequences, length). Raises StageError if there is no text."""
    if not read_manifest(data).facts["held_out_tokens"]:
        raise StageError(f"{data} has 0 held-out tokens, and the audit compares logits on held-out text; hold out more")
    dataset = IndexedDataset(str(data / "held_out"))
    flat = np.concatenate([dataset[index] for index in range(min(len(dataset), count))])[:count]
    length = min(longest, len(flat))
    rows = len(flat) // length
    return torch.from_numpy(flat[: rows * length].astype(np.int64)).view(rows, length)


if __name__ == "__main__":
    main(work)
