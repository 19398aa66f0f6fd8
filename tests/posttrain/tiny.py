"""A corpus, a tokenizer and a random model so small that a post-training engine takes seconds."""

import json
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from tasks.checkpoints import CheckpointFolder
from tasks.data.documents import SplitWriter, document
from tasks.manifest import read_manifest, write_manifest

MODULES = ("textwrap", "shlex", "queue", "heapq", "configparser", "calendar", "fractions", "cmd", "csv", "dis")


def tiny_corpus(directory: Path) -> Path:
    """Some modules of the standard library, all for training; a sealed Corpus."""
    directory.mkdir(parents=True)
    writer = SplitWriter(directory, "train")
    for text in _texts():
        writer.add(document("module.py", text))
    writer.close()
    facts = dict.fromkeys(("documents", "held_out_documents", "bytes", "held_out_bytes"), 0)
    write_manifest(directory, "corpus", facts | dict.fromkeys(("duplicates", "empty", "invalid_utf8"), 0), {}, {})
    return directory


def tiny_model(directory: Path, seed: int = 0, dtype: str = "bfloat16") -> Path:
    """A random Qwen3 (0.1 M parameters) with a tokenizer of 512 entries; a sealed HFModel."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\n+|[ \t]+"), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|pad|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        _texts(),
        trainers.BpeTrainer(vocab_size=512, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[0], pad_token=special[1])
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=0,
        pad_token_id=1,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config).to(getattr(torch, dtype))
    model.generation_config = GenerationConfig(eos_token_id=0, pad_token_id=1)
    model.save_pretrained(directory)
    fast.save_pretrained(directory)
    facts = {
        "label": "base",
        "architecture": "Qwen3ForCausalLM",
        "parameters": model.num_parameters(),
        "vocab_size": 512,
        "max_positions": 256,
        "dtype": dtype,
    }
    write_manifest(directory, "hf_model", facts, {}, {})
    return directory


def _texts() -> list[str]:
    library = Path(sysconfig.get_path("stdlib"))
    return [(library / f"{name}.py").read_text() for name in MODULES]


def write_job(directory: Path, stage: str, spec: dict[str, Any], **inputs: Path) -> Path:
    """A job directory as infra.launch would write it."""
    directory.mkdir(parents=True)
    request = {
        "stage": stage,
        "kind": "hf_model",
        "spec": spec,
        "inputs": {name: {"path": str(path), "digest": read_manifest(path).digest} for name, path in inputs.items()},
    }
    (directory / "spec.json").write_text(json.dumps(request))
    return directory


def start(module: str, job: Path) -> subprocess.Popen[bytes]:
    """The engine as a process of its own, its words in log.txt."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "1000"}
    with (job / "log.txt").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", module, str(job)], stdout=log, stderr=log, env=environment)


def metrics(job: Path) -> list[dict[str, float]]:
    path = job / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def without_times(job: Path) -> list[dict[str, float]]:
    """The metrics' numbers that an undisturbed run has again."""
    return [{name: value for name, value in line.items() if name != "time"} for line in metrics(job)]


def complete_checkpoints(job: Path) -> list[Path]:
    return CheckpointFolder(job / "work" / "checkpoints", "checkpoint-").complete()


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def wait_for_step(job: Path, engine: subprocess.Popen[bytes], step: int) -> None:
    """Until the engine has recorded `step`."""
    while not any(line["step"] >= step for line in metrics(job)):
        assert engine.poll() is None, (job / "log.txt").read_text()
        time.sleep(0.02)
