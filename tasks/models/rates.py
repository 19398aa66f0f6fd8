"""Learning rates by the size of the model, as model makers and training libraries publish them: the defaults, and what
explicit rates are compared with. With a value changes the version of the engines that use it (tasks/*/task.py): a spec
without a rate is in their cache keys as it is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

TOO_LOW, TOO_HIGH = 1e-3, 10  # times the table's rate: a warning
LORA = 10  # an adapter's rate in relation to that of every weight (Schulman et al. 2025, LoRA Without Regret)


@dataclass(frozen=True)
class Rate:
    """A peak learning rate for models with at most `up_to` parameters."""

    up_to: float
    value: float
    source: str

    def scaled(self, factor: float, why: str) -> "Rate":
        return Rate(self.up_to, float(f"{self.value * factor:.3g}"), f"{self.source}; {why}")


def rate_for(table: Sequence[Rate], parameters: float) -> Rate:
    """The row of the smallest size that holds the model."""
    return next(rate for rate in table if parameters <= rate.up_to)


def unusual(value: float, rate: Rate) -> str | None:
    """What is wrong with an explicit rate, if anything."""
    times = float(f"{value / rate.value:.9g}")  # 0.003 is 10 times 0.0003, not 10.000000000000002 times
    if TOO_LOW <= times <= TOO_HIGH:
        return None
    if times > TOO_HIGH:
        why = "A rate this high usually destroys what a model has learned"
    else:
        why = "Steps this small hardly change a weight, or are rounded away"
    return (
        f"learning rate {value:g} is {times:.3g} times the default for a model of this size, {rate.value:g} "
        f"({rate.source}). {why}; leave the field out for the default"
    )


def default_warmup(steps: int) -> int:
    """A tenth of the steps (alignment-handbook's recipes), at most 2,000 (GPT-3, Llama)."""
    return min(steps // 10, 2000)


ANY_SIZE = math.inf
