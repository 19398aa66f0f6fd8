"""Compute log-probabilities of completions, and a prompt that several of them share only once.

A group of completions is sampled for one prompt, or two are compared. TRL passes each completion with its own copy of
the prompt, so a prompt is computed once per completion. Here the completions of a prompt follow it in one row, as
branches of a tree: each attends to the prompt and to itself, at the positions it would have alone.

    prompt          branch 1        branch 2           a branch begins with the prompt's last token,
    p0 p1 p2        p3 a0 a1        p3 b0 b1 b2        which predicts the completion's first

Rows of similar lengths are computed together, with little padding. Log-probabilities and gradients equal those of the
standard computation up to rounding; this is checked for each model before its first batch.
"""

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MethodType
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from trl.trainer.utils import FusedCausalLMOutput

from baton.tasks.posttrain.encode import IGNORED

COMPLETIONS = 32  # completions that are computed together
BRANCHED = 2  # maximum ratio of a prompt's branches to the prompt, in tokens; attention grows with both
TOLERANCE = 1e-3  # nats in fp32; a model that ignores the mask differs by far more
BATCH = ("input_ids", "attention_mask", "labels")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tree:
    """A prompt, and completions of it that are computed together."""

    prompt: list[int]  # at least one token
    rows: list[int]  # rows of the batch
    completions: list[list[int]]

    @property
    def length(self) -> int:
        return len(self.prompt) - 1 + sum(1 + len(completion) for completion in self.completions)

    def tokens(self) -> Iterator[tuple[int, int, int]]:
        """Yield (token, position, branch) in order; the prompt without its last token is branch 0."""
        *shared, last = self.prompt
        yield from ((token, position, 0) for position, token in enumerate(shared))
        for branch, completion in enumerate(self.completions, 1):
            yield from ((token, position, branch) for position, token in enumerate([last, *completion], len(shared)))


def share_prompts(model: Any, *others: Any | None) -> None:
    """Patch models of the same architecture that have TRL's fused LM head (`model(…, labels=…, fused_lm_head=True)`),
    for batches whose labels are the completions' tokens. A model for which branches are not exact (for example one
    with sliding-window attention) computes each completion alone, with little padding.

    A hook into trl 1.16 (FusedCausalLMOutput, add_fused_lm_head); remove it when TRL's trainers share prompts.
    """
    branched = BRANCHED if _masks_by_position(model) and _agrees(model) else 0
    for other in (model, *others):
        if other is not None:
            _patch(other, branched)


def _masks_by_position(model: Any) -> bool:
    """Return whether every layer of the model applies a mask per pair of positions."""
    config = model.config.get_text_config()
    return (
        set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and not getattr(config, "sliding_window", None)
        and config._attn_implementation == "sdpa"
        and "position_ids" in inspect.signature(type(model).forward).parameters
    )


def _agrees(model: Any) -> bool:
    """Return whether both computations give the same log-probabilities of a few rows, without autocast. Logs if not."""
    drawn = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.get_text_config().vocab_size, (6, 12), generator=drawn)
    tokens[1:3, :7], tokens[4:6, :7] = tokens[0, :7], tokens[3, :7]  # two prompts, three completions of each
    labels = tokens.clone()
    labels[:, :7] = IGNORED
    batch = [tensor.to(model.device) for tensor in (tokens, torch.ones_like(tokens), labels)]
    training = model.training
    model.eval()  # no dropout
    with torch.no_grad(), torch.autocast(model.device.type, enabled=False):
        expected = model(**dict(zip(BATCH, batch, strict=True)), fused_lm_head=True).log_probs
        difference = float((log_probs(model, batch).log_probs - expected).abs().max())
    model.train(training)
    if difference > TOLERANCE:
        log.warning(
            "each completion is computed alone: sharing its prompt changes log-probabilities by %.2g", difference
        )
    return difference <= TOLERANCE


def _patch(model: Any, branched: int) -> None:
    original_forward = model.forward
    config = model.config.get_text_config()

    def forward(self: Any, *args: Any, fused_lm_head: bool = False, **inputs: Any) -> Any:
        aux_loss = getattr(config, "output_router_logits", False)  # would count a shared prompt's tokens only once
        if fused_lm_head and not args and not aux_loss and _given(inputs) == set(BATCH):
            batch = [inputs[name] for name in BATCH]
            if _completions_end_rows(*batch[1:]):
                return log_probs(original_forward, batch, branched)
        return original_forward(*args, fused_lm_head=fused_lm_head, **inputs)

    model.forward = MethodType(forward, model)


def _given(inputs: Mapping[str, Any]) -> set[str]:
    """Return the names of the inputs that have values; PEFT passes every argument of a model, most of them None."""
    return {name for name, value in inputs.items() if value is not None} - {"use_cache"}


def log_probs(forward: Any, batch: Sequence[torch.Tensor], branched: int = BRANCHED) -> FusedCausalLMOutput:
    """Return the output of `forward` for the batch; each per-token field is (rows, length − 1), and zero where there is
    no label.
    `batch`: input_ids, attention_mask and labels, each (rows, length), padded on either side; labels are −100 outside
    of the completions, which end their rows. With `branched` 0, each completion is computed alone."""
    input_ids, attention_mask, labels = batch
    trees = sorted(_trees(input_ids, attention_mask, labels, branched), key=lambda tree: tree.length)
    fields: dict[str, list[torch.Tensor]] = {}
    for begin, end in _spans([len(tree.rows) for tree in trees]):
        output = _computed(forward, trees[begin:end], input_ids.device)
        for name in ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1"):
            if getattr(output, name) is not None:
                fields.setdefault(name, []).append(getattr(output, name)[output.label_mask])
    # The labelled positions of the batch, in the trees' order
    mask = labels[:, 1:] != IGNORED
    starts = [0, *accumulate(mask.sum(1).tolist())]
    order = [place for tree in trees for row in tree.rows for place in range(starts[row], starts[row + 1])]
    at = mask.nonzero()[torch.tensor(order, dtype=torch.long, device=mask.device)].unbind(1)
    put = {
        name: (values := torch.cat(parts)).new_zeros(mask.shape).index_put(at, values) for name, parts in fields.items()
    }
    return FusedCausalLMOutput(loss=-put["log_probs"].sum() / mask.sum().clamp(min=1), label_mask=mask, **put)


def _completions_end_rows(attention_mask: torch.Tensor, labels: torch.Tensor) -> bool:
    """Return whether every token after a row's first label has one; a tool's results within a completion have none."""
    labelled = labels != IGNORED
    return not ((labelled.cumsum(1) > 0) & attention_mask.bool() & ~labelled).any()


def _trees(input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor, branched: int) -> list[Tree]:
    """Group rows with the same prompt, as many as `branched` allows."""
    prompts: dict[tuple[int, ...], list[tuple[int, list[int]]]] = {}
    for row, (tokens, valid, targets) in enumerate(zip(input_ids, attention_mask.bool(), labels, strict=True)):
        known = tokens[valid].tolist()
        count = max(1, int((targets[valid] == IGNORED).sum()))
        prompts.setdefault(tuple(known[:count]), []).append((row, known[count:]))
    trees = []
    for prompt, answers in prompts.items():
        room = 0
        for row, completion in answers:
            room -= 1 + len(completion)
            if room < 0:
                trees.append(Tree(list(prompt), [], []))
                room = branched * len(prompt) - 1 - len(completion)
            trees[-1].rows.append(row)
            trees[-1].completions.append(completion)
    return trees


def _spans(counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield slices of the trees, each with about COMPLETIONS rows."""
    begin, rows = 0, 0
    for end, count in enumerate(counts, 1):
        rows += count
        if rows >= COMPLETIONS or end == len(counts):
            yield begin, end
            begin, rows = end, 0


def _computed(forward: Any, trees: Sequence[Tree], device: torch.device) -> FusedCausalLMOutput:
    """Compute the trees as rows padded on the right. Without branches the model's own causal mask is enough."""
    laid_out = [torch.tensor(list(tree.tokens()), device=device) for tree in trees]
    tokens, positions, branches = pad_sequence(laid_out, batch_first=True, padding_value=-1).unbind(2)
    # The first token of a branch is the prompt's last
    first = (branches > 0) & (branches != torch.cat([torch.zeros_like(branches[:, :1]), branches[:, :-1]], 1))
    labels = tokens.masked_fill((branches < 1) | first, IGNORED)
    if all(len(tree.rows) == 1 for tree in trees):
        masked = {"attention_mask": (tokens >= 0).long()}
    else:  # (rows, 1, length, length); padding attends to padding, since a row of −inf would give NaN
        attended = (branches.unsqueeze(1) == branches.unsqueeze(2)) | (branches == 0).unsqueeze(1)
        masked = {"attention_mask": attended.tril().unsqueeze(1), "position_ids": positions.clamp(min=0)}
    return forward(input_ids=tokens.clamp(min=0), labels=labels, fused_lm_head=True, **masked)
