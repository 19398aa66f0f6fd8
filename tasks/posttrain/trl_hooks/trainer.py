"""Hooks into the base of TRL's trainers."""

from collections.abc import Iterator
from typing import Any

import torch
import trl.trainer.utils
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import LengthGroupedSampler


def score_completions_only() -> None:
    """Let TRL's fused LM head project only the labelled positions to the vocabulary, as it does with Triton.

    Without Triton it projects every position, since some devices recompile for each shape. A CPU does not compile, and
    most of the tokens are in prompts.
    """
    trl.trainer.utils._use_triton = lambda device: True


def name_experts(model: Any) -> None:
    """Set `num_experts` in the config of a mixture of experts: TRL's fused LM head computes the load-balancing loss
    with it, but GraniteMoe and PhiMoE only have the field under another name."""
    config = model.config.get_text_config()
    if not hasattr(config, "num_experts") and hasattr(config, "num_local_experts"):
        config.num_experts = config.num_local_experts


class PerEpoch(Sampler[int]):
    """A sampler by length whose order depends only on the seed and the epoch."""

    def __init__(self, sampler: LengthGroupedSampler, trainer: Any) -> None:
        self.sampler, self.trainer = sampler, trainer

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        epoch = int(self.trainer.state.epoch or 0)
        self.sampler.generator = torch.Generator().manual_seed(self.trainer.args.seed + epoch)
        return iter(self.sampler)


def order_by_epoch(trainer: Any) -> None:
    """Let a resumed run use the rows in the order of an uninterrupted one.

    The Trainer draws an epoch's order from torch's global random state; when it resumes in a later epoch, it does so
    before it restores that state.
    """
    get_sampler = trainer._get_train_sampler

    def sampler(*dataset: Any) -> Any:
        inner = get_sampler(*dataset)
        return PerEpoch(inner, trainer) if isinstance(inner, LengthGroupedSampler) else inner

    trainer._get_train_sampler = sampler


def train_in_fp32(model: Any) -> None:
    """Undo TRL's conversion of a quantized model's adapter to bf16, in which small updates are lost."""
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
