"""Published learning rates of model makers and training libraries by model size: the defaults, and the reference for
explicit rates. A change of a value needs a new version of the engines that use it (tasks/*/task.py): their cache keys
have a spec without a rate as it is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

TOO_LOW, TOO_HIGH = 1e-3, 10  # factors of the table's rate below and above which a warning is issued
LORA = 10  # ratio of an adapter's rate to that of full training (Schulman et al. 2025, LoRA Without Regret)


@dataclass(frozen=True)
class Rate:
    """A peak learning rate for models with at most `up_to` parameters."""

    up_to: float
    value: float
    source: str

    def scaled(self, factor: float, why: str) -> "Rate":
        return Rate(self.up_to, float(f"{self.value * factor:.3g}"), f"{self.source}; {why}")


def rate_for(table: Sequence[Rate], parameters: float) -> Rate:
    """Return the row of the smallest size that includes the model."""
    return next(rate for rate in table if parameters <= rate.up_to)


def unusual(value: float, rate: Rate) -> str | None:
    """Return a warning about an explicit rate that is unusually low or high; None if it is neither."""
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
    """Return a tenth of the steps (alignment-handbook's recipes), at most 2,000 (GPT-3, Llama)."""
    return min(steps // 10, 2000)


ANY_SIZE = math.inf
