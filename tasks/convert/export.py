"""Megatron checkpoint → Hugging Face safetensors, proven.

    python -m tasks.convert.export JOB_DIR

In: `checkpoint`, `tokenizer`, and `data`, whose held-out text the proof uses. Out: config,
generation config, safetensors, tokenizer; record/parity.json has the account of every tensor and
how far the logits are apart. One process, no GPU; the model is loaded whole.
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from transformers import GenerationConfig, Qwen3ForCausalLM

from tasks.convert import qwen3
from tasks.convert.spec import ConvertSpec
from tasks.convert.weights import Entry, convert
from tasks.job import Job, StageError, main, write_json
from tasks.manifest import read_manifest
from tasks.pretrain import megatron
from tasks.pretrain.model_spec import ModelSpec

# isort: split
from megatron.core import parallel_state, tensor_parallel
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.models.gpt.gpt_model import GPTModel

from tasks.convert.parity import compare
from tasks.pretrain import checkpoint
from tasks.pretrain.model import build_model, transformer_config

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def work(job: Job) -> None:
    spec = job.spec(ConvertSpec)
    source, tokenizer, data = job.input("checkpoint"), job.input("tokenizer"), job.input("data")
    description = json.loads((source / "model.json").read_text())
    model = ModelSpec.model_validate(description["model"])
    _same_tokenizer(job, source)
    job.progress(0, 3, "parts", now="reading")
    trained = load_trained(model, description["vocab_size"], source)
    job.progress(1, 3, "parts", now="writing")
    shutil.rmtree(job.output, ignore_errors=True)
    account = write(trained, model, description["vocab_size"], tokenizer, job.output, spec)
    job.progress(2, 3, "parts", now="comparing logits")
    text = held_out_tokens(data, spec.parity_tokens, model.max_positions)
    # what was written may be rounded; then the comparison is with the rounded weights
    trained.to(DTYPES[spec.dtype]).float()
    parity = compare(trained, job.output, text, spec.parity_bound)
    parity.require()
    write_json(job.record / "parity.json", {**asdict(parity), "tensors": [asdict(entry) for entry in account]})
    job.progress(3, 3, "parts")
    job.finish(
        label="base",
        architecture="Qwen3ForCausalLM",
        parameters=model.parameters(description["vocab_size"]),
        vocab_size=description["vocab_size"],
        max_positions=model.max_positions,
        dtype=spec.dtype,
    )


def load_trained(model: ModelSpec, vocab_size: int, source: Path) -> GPTModel:
    """The Megatron model in fp32 with the checkpoint's weights; every one of them is used."""
    if not dist.is_initialized():  # Megatron wants its groups, even of one
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        tensor_parallel.model_parallel_cuda_manual_seed(0)
    trained = build_model(model, transformer_config(model, "fp32"), vocab_size).eval()
    in_checkpoint = checkpoint.load_weights(trained, source / "checkpoint")
    unused = in_checkpoint - {part.key for part in trained.sharded_state_dict().values() if hasattr(part, "key")}
    if unused:
        raise StageError(f"the checkpoint has weights that its model.json has not: {', '.join(sorted(unused))}")
    return trained


def write(
    trained: GPTModel, model: ModelSpec, vocab_size: int, tokenizer: Path, output: Path, spec: ConvertSpec
) -> list[Entry]:
    """Write the Hugging Face directory; returns the account of the weights."""
    weights = {name: value for name, value in trained.state_dict().items() if isinstance(value, Tensor)}
    converted, account = convert(weights, model, spec.dtype)
    words = read_manifest(tokenizer)
    eos_id, pad_id = int(words.facts["eos_id"]), int(words.facts["pad_id"])
    config = qwen3.config(model, vocab_size, eos_id, pad_id)
    exported = Qwen3ForCausalLM(config)
    expected = {name for name, _ in exported.named_parameters()}  # a tied lm_head is named once
    if expected != converted.keys():
        raise StageError(f"weights missing or too many in the export: {sorted(expected ^ converted.keys())}")
    exported.load_state_dict(converted, strict=False)  # strict but for the tied lm_head: names were compared above
    exported.generation_config = GenerationConfig(do_sample=True, eos_token_id=eos_id, pad_token_id=pad_id)
    exported.to(DTYPES[spec.dtype]).save_pretrained(output, max_shard_size=f"{spec.max_shard_gb}GB")
    for name in words.files:  # as they are: loading and saving a tokenizer changes it
        shutil.copy(tokenizer / name, output / name)
    return account


def held_out_tokens(data: Path, count: int, longest: int) -> Tensor:
    """At most `count` tokens of held-out text, (sequences, length)."""
    dataset = IndexedDataset(str(data / "held_out"))
    flat = np.concatenate([dataset[index] for index in range(min(len(dataset), count))])[:count]
    length = min(longest, len(flat))
    rows = len(flat) // length
    return torch.from_numpy(flat[: rows * length].astype(np.int64)).view(rows, length)


def _same_tokenizer(job: Job, source: Path) -> None:
    trained_with = read_manifest(source).facts["tokenizer_digest"]
    given = job.inputs["tokenizer"]["digest"]
    if trained_with != given:
        raise StageError(f"the checkpoint was trained with tokenizer {trained_with[:12]}, not with {given[:12]}")


if __name__ == "__main__":
    assert megatron.DEVICE  # Megatron's set-up comes before its names
    main(work)
