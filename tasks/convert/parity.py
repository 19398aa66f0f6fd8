"""The proof of a conversion: the logits of both models, each from its files, on the same text."""

from dataclasses import dataclass
from pathlib import Path

import torch
from megatron.core.models.gpt.gpt_model import GPTModel
from torch import Tensor
from transformers import AutoModelForCausalLM

from tasks.job import StageError


@dataclass(frozen=True)
class Parity:
    """How far the logits are apart."""

    tokens: int
    max_abs_diff: float
    mean_abs_diff: float
    argmax_agreement: float  # share of positions with the same most likely token
    bound: float

    def require(self) -> None:
        """Raises StageError unless the models agree."""
        if not (self.max_abs_diff <= self.bound and self.argmax_agreement == 1.0):
            raise StageError(
                f"the exported model is not the trained one: on {self.tokens} held-out tokens the logits differ by up "
                f"to {self.max_abs_diff:.3g} (allowed {self.bound:.3g}) and the most likely token agrees on "
                f"{self.argmax_agreement:.2%} (100 % required)"
            )


@torch.no_grad()
def compare(source: GPTModel, exported: Path, tokens: Tensor, bound: float) -> Parity:
    """Run both in fp32 on `tokens`, (sequences, length)."""
    target = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval()
    positions = torch.arange(tokens.size(1)).expand_as(tokens).contiguous()
    largest, total, agreed, count = 0.0, 0.0, 0, 0
    for row, position in zip(tokens.split(1), positions.split(1), strict=True):  # one at a time: bounded memory
        ours, theirs = source(row, position, None).float(), target(row).logits
        difference = (ours - theirs).abs()
        # max() of a tensor with NaN is NaN, and NaN fails the bound
        largest = max(largest, float(difference.max())) if not difference.isnan().any() else float("nan")
        total += float(difference.sum())
        count += difference.numel()
        agreed += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
        if difference.isnan().any():
            break
    return Parity(tokens.numel(), largest, total / count, agreed / tokens.numel(), bound)
