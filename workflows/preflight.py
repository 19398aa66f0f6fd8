"""What is checked before any compute: that the stages fit together, that their inputs are there,
and that there is room for what they will write."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from infra.home import baton_home
from tasks.spec import Problem, Spec


@dataclass(frozen=True)
class Given:
    """The stages that a recipe asks for: those that are right by themselves, and the names of those
    that are not (their own problems are reported already)."""

    specs: dict[str, Any]
    broken: set[str]

    def __contains__(self, stage: str) -> bool:
        return stage in self.specs or stage in self.broken


# stage: the stage it needs, and what that one hands to it
NEEDS = {
    "shards": ("tokenizer", "the tokenizer that makes the shards"),
    "pretrain": ("shards", "tokenized text"),
    "convert": ("pretrain", "a checkpoint to convert"),
}
# vllm 0.27, v1/attention/backends/cpu_attn.py and flash_attn.py: what both have
VLLM_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)
NEED_A_MODEL = ("evaluate", "sft", "dpo", "grpo", "publish")
WITH_START_FROM_OFF = ("tokenizer", "shards", "pretrain", "convert")


def problems_of(given: Given) -> list[Problem]:
    """Every problem of the recipe as a whole, and of each stage across its fields."""
    found = []
    for name, spec in given.specs.items():
        if isinstance(spec, Spec):
            found += [problem.under(name) for problem in spec.problems()]
    for check in CHECKS:
        found += check(given)
    return found


def _order(given: Given) -> list[Problem]:
    """Each stage's input comes from a stage that is on."""
    found = []
    if "start_from" in given:
        found += [
            Problem(stage, "on", "must be left out with start_from, which brings a model and its tokenizer")
            for stage in WITH_START_FROM_OFF
            if stage in given
        ]
    else:
        found += [
            Problem(stage, "on", f"needs {before} ({what}); add `{before}:` or leave `{stage}:` out")
            for stage, (before, what) in NEEDS.items()
            if stage in given and before not in given
        ]
        found += [
            Problem(stage, "on", "needs a model: add `convert:` (with pretrain) or `start_from:`, or leave it out")
            for stage in NEED_A_MODEL
            if stage in given and "convert" not in given
        ]
    return found


def _inputs(given: Given) -> list[Problem]:
    """Files and folders that the recipe names are there."""
    found = []
    for name in ("corpus", "tokenizer", "start_from"):
        if name in given.specs:
            found += [problem.under(name) for problem in given.specs[name].missing()]
    for index, corpus in enumerate(given.specs.get("more_corpora", ())):
        found += [problem.under(f"more_corpora.{index}") for problem in corpus.missing()]
    return found


def _data_sets(given: Given) -> list[Problem]:
    """Somebody reads the additional corpora, and the weights are as many as the data sets."""
    if "more_corpora" in given.broken:
        return []
    more = len(given.specs.get("more_corpora", ()))
    if more and "pretrain" not in given:
        allowed = "are for pretraining only: add `pretrain:` or leave them out"
        return [Problem("more_corpora", f"{more} corpora", allowed)]
    weights = given.specs["pretrain"].data_weights if "pretrain" in given.specs else None
    if weights is None or len(weights) == 1 + more:
        return []
    return [Problem("pretrain.data_weights", weights, f"one for the corpus and one for each of {more} more_corpora")]


def _vocabulary(given: Given) -> list[Problem]:
    """The embedding has a row for every token."""
    if not {"tokenizer", "pretrain"} <= given.specs.keys():
        return []
    rows, tokens = given.specs["pretrain"].model.vocab_size, given.specs["tokenizer"].size()
    if rows is None or tokens is None or rows >= tokens:
        return []
    return [Problem("pretrain.model.vocab_size", rows, f"at least the tokenizer's vocabulary ({tokens})")]


def _positions(given: Given) -> list[Problem]:
    """No stage uses longer sequences than the model has positions."""
    if "pretrain" in given.specs:
        positions, where = given.specs["pretrain"].model.max_positions, "pretrain.model.max_positions"
    elif "start_from" in given.specs and given.specs["start_from"].max_positions():
        positions, where = given.specs["start_from"].max_positions(), "start_from.model's max_position_embeddings"
    else:
        return []
    found = []
    for name in ("evaluate", "sft", "dpo", "grpo"):
        for field, value in given.specs[name].sequence_lengths().items() if name in given.specs else ():
            if value > positions:
                found.append(Problem(f"{name}.{field}", value, f"at most {where} ({positions})"))
    return found


def _head_size(given: Given) -> list[Problem]:
    """vLLM has attention kernels for the model's heads."""
    with_vllm = [stage for stage in ("evaluate", "dpo", "grpo") if stage in given]
    if "pretrain" not in given.specs or not with_vllm:
        return []
    size = given.specs["pretrain"].model.head_dim
    if size in VLLM_HEAD_SIZES:
        return []
    allowed = f"one of {', '.join(map(str, VLLM_HEAD_SIZES))}: vLLM, which {', '.join(with_vllm)} use, has no other"
    return [Problem("pretrain.model.head_dim", size, allowed)]


def _room(given: Given) -> list[Problem]:
    """The disk has room for what the run writes."""
    if "pretrain" not in given.specs:
        return []
    spec = given.specs["pretrain"]
    vocabulary = spec.model.vocab_size or (given.specs["tokenizer"].size() if "tokenizer" in given.specs else None)
    needed = estimated_bytes(given, spec.model.parameters(vocabulary or 0))
    free = shutil.disk_usage(baton_home()).free
    if needed <= free:
        return []
    allowed = (
        f"about {needed / 1e9:,.1f} GB will be written and {free / 1e9:,.1f} GB are free in {baton_home()}: "
        "lower checkpoints.keep_last, make room, or set BATON_HOME to a larger disk"
    )
    return [Problem("pretrain.checkpoints.keep_last", spec.checkpoints.keep_last, allowed)]


# bytes for each weight: bf16 weights, fp32 master weights, and Adam's two moments; a model for exchange in bf16
CHECKPOINT_BYTES = 2 + 4 + 4 + 4
MODEL_BYTES = 2
TUNING_BYTES = 4 + 4 + 4  # TRL's checkpoints: fp32 weights and Adam's two moments


def estimated_bytes(given: Given, parameters: int) -> int:
    """What the run will write, roughly: checkpoints (one more while saving), models, shards."""
    spec = given.specs["pretrain"]
    kept = (spec.checkpoints.keep_last + 1) * CHECKPOINT_BYTES
    tuned = sum(stage in given for stage in ("sft", "dpo", "grpo"))
    models = MODEL_BYTES * (1 + tuned + ("publish" in given)) + 2 * TUNING_BYTES * bool(tuned)
    return int(parameters * (kept + models))


CHECKS: list[Callable[[Given], list[Problem]]] = [
    _order,
    _inputs,
    _data_sets,
    _vocabulary,
    _positions,
    _head_size,
    _room,
]
