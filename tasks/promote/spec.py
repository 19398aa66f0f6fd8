"""When a candidate takes the champion's place.

A metric is `<evaluator>.<metric>` as the evaluation names it, or `old.bits_per_byte`, `new.…`, `all.…`: `old` is
held-out text of what was accepted before, `new` of what came since, `all` of both. The main metric is taken on `old` by
default: a corrupted day brings corrupted held-out text as well, and a model that learnt it wins there. What is new and
accepted today is old tomorrow, so a champion that does not keep up with the text is overtaken all the same.
"""

from typing import Annotated

from pydantic import Field

from tasks.evaluate.results import BITS, SETS
from tasks.spec import Problem, StageSpec

NAME = rf"^({'|'.join(SETS)})\.{BITS}$|^[A-Za-z0-9][\w-]*(\.[\w@-]+)+$"
UNITS = "relative to the champion's for bits per byte, difference of means for the others (0.03 of a share: 3 points)"
TAIL = 10  # resamples beyond a bound, at least: fewer make it a matter of luck


class PromotionSpec(StageSpec):
    """Better by a margin on the main metric, with confidence, and no regression beyond its bound elsewhere."""

    metric: str = Field(
        "old.bits_per_byte",
        pattern=NAME,
        description="Main metric: old.bits_per_byte, new.bits_per_byte, all.bits_per_byte, or an evaluator's: "
        "<evaluator>.<reward>, <evaluator>.pass@<k>",
    )
    margin: float = Field(
        0.002, ge=0, lt=1, description=f"A promoted model is better on the main metric by more than this; {UNITS}"
    )
    confidence: float = Field(
        0.95, ge=0.5, lt=1, description="Of each bound, one-sided; share of repetitions in which it would hold"
    )
    resamples: int = Field(4_000, ge=100, le=1_000_000, description="Bootstrap resamples behind each bound; count")
    regressions: dict[Annotated[str, Field(pattern=NAME)], Annotated[float, Field(ge=0)]] = Field(
        {"old.bits_per_byte": 0.01, "new.bits_per_byte": 0.01},
        description=f"Largest regression that is accepted, by metric; {UNITS}. "
        "Two draws of one model on 600 prompts differ by some 3 points",
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Of the bootstrap's draws")

    def problems(self) -> list[Problem]:
        needed = round(TAIL / (1 - self.confidence))
        if self.resamples < needed:
            allowed = f"at least {needed} for a confidence of {self.confidence}: {TAIL} beyond the bound"
            return [Problem("resamples", self.resamples, allowed)]
        return []


class PromoteSpec(StageSpec):
    """One carrying out of a decision: the execution tells it from another, so that each one looks at the registry."""

    execution: str = Field("", pattern=r"^(\w[\w.-]*)?$", max_length=200, description="Id of the execution")
