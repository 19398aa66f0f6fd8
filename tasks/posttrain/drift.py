"""Stop a run whose vLLM assigns its samples other probabilities than the trainer.

A token's ratio is exp|Δ log p|, which is 1 if both agree. The mean ratio is the metric `rollout_mismatch`; NeMo-RL
stops above 1.1.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from baton.tasks.core.job import StageError

WORST = 5  # sequences and tokens shown


def sum_and_count(trainer: Tensor, engine: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of the ratios and their number, (2,), which can be added up over processes."""
    ratios = (trainer - engine).abs()[mask].exp().double()
    return torch.stack([ratios.sum(), mask.sum().double()])


def check_drift(
    most: float, mean: float, trainer: Tensor, engine: Tensor, mask: Tensor, describe: Callable[[int], str]
) -> None:
    """Raise StageError, with this process's worst sequences and tokens, if the mean ratio of all processes is above
    `most`. `trainer`, `engine` (log-probabilities) and `mask` are (sequences, tokens); `describe` returns a sequence's
    beginning."""
    if mean > most:
        ratios = (trainer - engine).abs().exp()
        lines = [*_sequences(ratios, mask, describe), *_tokens(ratios * mask, trainer, engine)]
        raise StageError(
            f"trainer and vLLM have drifted apart: the mean of exp|Δ log p| over sampled tokens is {mean:.4g}, above "
            f"drift.max {most:g}. Raise drift.max if vLLM's kernels or its precision explain that\n" + "\n".join(lines)
        )


def _sequences(ratios: Tensor, mask: Tensor, describe: Callable[[int], str]) -> Iterator[str]:
    means = (ratios * mask).sum(1) / mask.sum(1).clamp(min=1)
    yield f"{'worst sequences':>15}  {'mean ratio':>10}  {'tokens':>6}  completion"
    for row in means.argsort(descending=True)[:WORST].tolist():
        yield f"{row:>15}  {float(means[row]):>10.4g}  {int(mask[row].sum()):>6}  {describe(row)}"


def _tokens(ratios: Tensor, trainer: Tensor, engine: Tensor) -> Iterator[str]:
    yield f"{'worst tokens':>15}  {'ratio':>10}  {'sequence':>8}  {'log p, trainer':>14}  {'vLLM':>8}"
    for place in ratios.flatten().argsort(descending=True)[:WORST].tolist():
        row, column = divmod(place, ratios.shape[1])
        logs = f"{float(trainer[row, column]):>14.4f}  {float(engine[row, column]):>8.4f}"
        yield f"{column:>15}  {float(ratios[row, column]):>10.4g}  {row:>8}  {logs}"


def beginning(decode: Callable[[Sequence[int]], str], ids: Tensor, mask: Tensor) -> Callable[[int], str]:
    """Return the `describe` function of completions `ids`, (sequences, tokens)."""
    return lambda row: repr(decode(ids[row][mask[row]].tolist())[:40])
