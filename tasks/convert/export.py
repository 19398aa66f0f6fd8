"""Run the stage that exports a Megatron checkpoint to Hugging Face safetensors.

    python -m baton.tasks.convert.export JOB_DIR

Inputs are `checkpoint` and `tokenizer`; outputs are config, generation config, safetensors and tokenizer, and
record/conversion.json, which lists every weight. The stage runs in one process without a GPU and never holds the model
in memory. `baton convert export` converts plain folders.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

from baton.tasks.convert.export_model import ExportOptions, export_model
from baton.tasks.convert.from_spec import config_fields
from baton.tasks.convert.megatron_model import open_megatron
from baton.tasks.convert.spec import ConvertSpec
from baton.tasks.core.job import Job, StageError, main
from baton.tasks.core.manifest import read_manifest
from baton.tasks.models.model_spec import ModelSpec
from baton.tasks.models.tokenizers import elsewhere


def work(job: Job) -> None:
    spec = job.spec(ConvertSpec)
    source, tokenizer = job.input("checkpoint"), job.input("tokenizer")
    _check_tokenizer(job, source)
    facts = read_manifest(tokenizer).facts
    description = json.loads((source / "model.json").read_text())
    model, vocab_size = ModelSpec.model_validate(description["model"]), description["vocab_size"]
    tokens = {"eos_token_id": int(facts["eos_id"]), "pad_token_id": int(facts["pad_id"])}
    opened = replace(open_megatron(source), fields=config_fields(model, vocab_size, **tokens))
    options = ExportOptions(spec.dtype, int(spec.max_shard_gb * 1e9), replace=True)
    export_model(opened, job.output, options, tokenizer, lambda done, total: job.progress(done, total, "bytes"))
    for note in elsewhere(job.output):
        job.notice(note)
    job.finish(
        label="base",
        architecture=opened.fields["architectures"][0],
        parameters=model.parameters(vocab_size),
        vocab_size=vocab_size,
        max_positions=model.max_positions,
        dtype=spec.dtype,
    )


def _check_tokenizer(job: Job, source: Path) -> None:
    trained_with = read_manifest(source).facts["tokenizer_digest"]
    given = job.inputs["tokenizer"]["digest"]
    if trained_with != given:
        raise StageError(f"the checkpoint was trained with tokenizer {trained_with[:12]}, not with {given[:12]}")


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"  # all inputs are local
    main(work)
