"""A check that an engine computes the same model as Transformers.

A stage that has a model in Transformers scores a short text with it and leaves the result with the artifact, in
record/probe.json. An engine of another library that opens the artifact scores the same tokens first, and ends the stage
if it computes another model: a tied embedding in place of an output projection, a soft cap that is left out, a rotary
base that is read differently. As in `rollout_mismatch`, the measure is exp|Δ log p|, which is 1 if both agree.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from baton.infra.storage.durable import write_text
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import RECORD
from baton.tasks.models.hf_files import CONFIG

PROBE = "probe.json"  # in record/
TEXT = (
    "The river was calm in the morning. In 2023 the town had 12,480 people; most of them knew each other by name.\n"
    "def area(width, height):\n    return width * height\n"
)
MOST_TOKENS = 48
# Limit of the mean of exp|Δ log p|, the same as NeMo-RL's for rollouts; with bf16 on both sides it is 1.00 to 1.02
MOST_DIFFERENT = 1.1


@dataclass(frozen=True)
class Probe:
    """Tokens, and the log-probability that Transformers gives each but the first, in nats."""

    ids: list[int]
    logprobs: list[float]

    def write(self, record: Path) -> None:
        write_text(record / PROBE, json.dumps(asdict(self)))


def read_probe(directory: Path) -> Probe | None:
    """Return the probe of an artifact; None if it has none."""
    try:
        return Probe(**json.loads((directory / RECORD / PROBE).read_text()))
    except FileNotFoundError:
        return None


def probe(model: Any, tokenizer: Any) -> Probe:
    """Score the text with a model of Transformers, in its weights' precision."""
    ids = list(tokenizer(TEXT)["input_ids"])[: min(MOST_TOKENS, model.config.max_position_embeddings - 1)]
    return Probe(ids, _logprobs(model, ids))


@torch.no_grad()
def _logprobs(model: Any, ids: list[int]) -> list[float]:
    training = model.training
    model.eval()
    with torch.autocast(model.device.type, enabled=False):
        logits = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0, :-1]
    model.train(training)
    logprobs = logits.float().log_softmax(-1).gather(1, torch.tensor(ids[1:], device=logits.device).unsqueeze(1))
    return [round(value, 5) for value in logprobs.squeeze(1).tolist()]


def check_causal(model: Any, expected: Probe) -> None:
    """Raise StageError if a model's log-probabilities are not numbers, or depend on later tokens, like those of an
    encoder such as BERT, which Transformers also loads as a causal language model. `expected` is the model's probe."""
    if not all(map(math.isfinite, expected.logprobs)):
        raise StageError(
            f"the log-probabilities that {type(model).__name__} gives a short text are NaN or infinite, though its "
            f"weights are not: a value in {CONFIG} is wrong, such as rope_theta, or the weights are too large"
        )
    half = len(expected.ids) // 2
    other = _logprobs(model, expected.ids[:half] + expected.ids[half:][::-1])  # the same length has the same products
    if not _ratio(_differences(expected.logprobs[: max(half - 1, 0)], other)) <= MOST_DIFFERENT:
        raise StageError(
            f"{type(model).__name__} is no causal language model with this {CONFIG}: what it predicts for a token "
            "depends on the tokens after it. Choose a decoder"
        )


def check_agreement(expected: Probe, logprobs: Sequence[float], engine: str) -> None:
    """Raise StageError if an engine's log-probabilities of the probe's tokens, or of the first of them, are those of
    another model."""
    differences = _differences(expected.logprobs, logprobs)
    if not (ratio := _ratio(differences)) <= MOST_DIFFERENT:
        worst = int(differences.nan_to_num(torch.inf).argmax())
        raise StageError(
            f"{engine} does not compute the model that Transformers computes: on a text of {len(expected.ids)} tokens "
            f"the mean of exp|Δ log p| is {ratio:.3g}, above {MOST_DIFFERENT:g} (token {worst + 1}: log p "
            f"{expected.logprobs[worst]:.3f} in Transformers, {logprobs[worst]:.3f} in {engine}). One of them does not "
            f"implement something that {CONFIG} or the weights have"
        )


def _differences(one: Sequence[float], other: Sequence[float]) -> torch.Tensor:
    return torch.tensor([abs(a - b) for a, b in zip(one, other, strict=False)], dtype=torch.float64)


def _ratio(differences: torch.Tensor) -> float:
    """Return the mean of exp|Δ log p|: 1 if nothing is compared, NaN if a log-probability is NaN."""
    return float(differences.clamp(max=100).exp().mean()) if len(differences) else 1.0
