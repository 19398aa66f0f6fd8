"""Rows, a tokenizer and a random model small enough that a post-training engine finishes in seconds."""

import json
import os
import random
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from baton.tasks.core.checkpoints import CheckpointFolder
from baton.tasks.core.manifest import read_manifest, write_manifest
from baton.tasks.posttrain.rows import KIND_FACT
from baton.tasks.rewards.spec import RewardSpec
from baton.tasks.rows.stored import OPTIONAL
from tests import forked

forked.load("torch.distributed.checkpoint", "datasets", "trl.trainer.sft_trainer", "trl.trainer.grpo_trainer")

Row = dict[str, Any]
MODULES = ("textwrap", "shlex", "queue", "heapq", "configparser", "calendar", "fractions", "cmd", "csv", "dis")


WORDS = ("cat", "dog", "sun", "sea", "tree", "bird", "road", "lamp", "book", "door", "fish", "rain")


def repeated_words(count: int = 400) -> list[Row]:
    """Return rows that a tiny model can learn: repeated words."""
    numbers = random.Random(0)
    pairs = {(numbers.choice(WORDS), numbers.choice(WORDS), numbers.randrange(100)) for _ in range(3 * count)}
    return [
        {"prompt": f"{number}: {one} {other} ->", "completion": f" {one} {other}"}
        for one, other, number in sorted(pairs)[:count]
    ]


def chat(row: Row) -> Row:
    """Return the same rows as messages."""
    said = {"role": "assistant", "content": row["completion"]}
    return {"messages": [{"role": "user", "content": row["prompt"]}, said]}


# the folder in a job's directory where parity.py saves the optimizer's gradients, a file per step
GRADIENTS = "gradients"
REWARD = """
def right(completions, completion, **columns):
    return [share(said, gold) for said, gold in zip(completions, completion)]

def share(said, gold):
    said, gold = (each if isinstance(each, str) else each[0]["content"] for each in (said, gold))
    pairs = zip(said.split() + ["", ""], gold.split())
    return sum(one == other for one, other in pairs) / len(gold.split())

def wrong(completions, completion, **columns):
    return [-each for each in right(completions, completion)]

def near(completions, completion, **columns):
    return [1.0 if said == gold else len(said) % 7 / 10 for said, gold in zip(completions, completion)]

def never(completions, **columns):
    return [None] * len(completions)
"""


def reward(folder: Path, name: str = "right", **spec: Any) -> dict[str, Any]:
    """Return a user's reward function as it appears in a job's spec."""
    folder.mkdir(exist_ok=True)
    (folder / "twice.py").write_text(REWARD)
    found = RewardSpec.model_validate({"function": f"{folder / 'twice.py'}:{name}", **spec}).pinned()
    return found.model_dump(mode="json")


def tiny_rows(
    directory: Path, rows: Sequence[Row], kind: str, drops_faulty: bool = False, held_out: Sequence[Row] = ()
) -> Path:
    """Write a sealed set of rows, by default all for training."""
    directory.mkdir(parents=True)
    for name, written in (("train", rows), ("held_out", held_out)):
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))
    (directory / "rows.json").write_text(json.dumps({"drops_faulty": drops_faulty}))
    columns = list(dict.fromkeys(name for row in rows for name in row if name not in OPTIONAL))
    facts = {KIND_FACT: kind, "columns": columns, "rows": len(rows), "held_out_rows": len(held_out)}
    write_manifest(directory, "rows", facts)
    return directory


def tiny_model(
    directory: Path, seed: int = 0, dtype: str = "bfloat16", turns: bool = False, positions: int = 256
) -> Path:
    """Write a sealed HFModel: a random Qwen3 (0.1 M parameters) with a tokenizer of 512 entries, which with `turns`
    include those that begin and end ChatML's turns."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\n+|[ \t]+"), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|pad|>", *(["<|im_start|>", "<|im_end|>"] if turns else [])]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        _texts(),
        trainers.BpeTrainer(vocab_size=512, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[0], pad_token=special[1])
    fast.add_special_tokens({"additional_special_tokens": special[2:]})
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=positions,
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
        "max_positions": positions,
        "dtype": dtype,
    }
    write_manifest(directory, "hf_model", facts)
    return directory


def _texts() -> list[str]:
    library = Path(sysconfig.get_path("stdlib"))
    return [(library / f"{name}.py").read_text() for name in MODULES]


def write_job(directory: Path, stage: str, spec: dict[str, Any], **inputs: Path) -> Path:
    """Write a job directory as baton.infra.process.launch does."""
    directory.mkdir(parents=True)
    request = {
        "stage": stage,
        "kind": "eval_report" if stage == "evaluate" else "hf_model",
        "spec": spec,
        "inputs": {name: {"path": str(path), "digest": read_manifest(path).digest} for name, path in inputs.items()},
    }
    (directory / "spec.json").write_text(json.dumps(request))
    return directory


def environment() -> dict[str, str]:
    """Return an engine's environment, as the launcher sets it."""
    return os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "1000"}


def start(module: str, job: Path) -> forked.Forked:
    """Start the engine as a separate process, with its output in log.txt."""
    return forked.module(module, job)


def metrics(job: Path) -> list[dict[str, float]]:
    path = job / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def without_times(job: Path) -> list[dict[str, float]]:
    """Return the metrics that an uninterrupted run reproduces."""
    return [{name: value for name, value in line.items() if name != "time"} for line in metrics(job)]


def complete_checkpoints(job: Path) -> list[Path]:
    return CheckpointFolder(job / "work" / "checkpoints", "checkpoint-").complete()


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def wait_for_step(job: Path, engine: forked.Forked, step: int) -> None:
    """Wait until the engine has recorded `step`."""
    while not any(line["step"] >= step for line in metrics(job)):
        assert engine.poll() is None, (job / "log.txt").read_text()
        time.sleep(0.02)
