"""The spec of the rule by which a candidate replaces the champion.

A metric is `<evaluator>.<metric>` as the evaluation names it, or `old.bits_per_byte`, `new.…`, `all.…`: `old` is
held-out text of the corpora accepted before, `new` of the later ones, `all` of both. By default the main metric is
measured on `old`: a corrupted corpus has corrupted held-out text as well, on which a model that learned it wins. New
text that is accepted counts as old in the next generation, so a champion that does not keep up is still overtaken.

A candidate may improve on the old text by replay alone, whatever the new text is. So the distance of the new text from
the old is measured too, as the ratio of the bits per byte of the champion, which has not been trained on the new text.
"""

from typing import Annotated

from pydantic import Field

from baton.tasks.core.spec import Problem, StageSpec, identity_if_set
from baton.tasks.evaluate.results import BITS, SETS

NAME = rf"^({'|'.join(SETS)})\.{BITS}$|^[A-Za-z0-9][\w-]*(\.[\w@-]+)+$"
UNITS = "relative to the champion's for bits per byte, difference of means for the others (0.03 of a share: 3 points)"
FAR = 2.0  # ratio from which new text counts as far from the old
TAIL = 10  # minimum number of resamples beyond a bound; with fewer, the bound is mostly chance


class PromotionSpec(StageSpec):
    """The rule of promotion: better by a margin on the main metric, with confidence, and no regression beyond its bound
    on the others."""

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
        0.95, ge=0.5, lt=1, description="Confidence of each one-sided bound; share of repetitions in which it holds"
    )
    resamples: int = Field(4_000, ge=100, le=1_000_000, description="Number of bootstrap resamples for each bound")
    regressions: dict[Annotated[str, Field(pattern=NAME)], Annotated[float, Field(ge=0)]] = Field(
        {"old.bits_per_byte": 0.01, "new.bits_per_byte": 0.01},
        description=f"Largest accepted regression, by metric; {UNITS}. "
        "Two evaluations of one model on 600 sampled prompts differ by about 3 points",
    )
    max_new_text_ratio: float | None = identity_if_set(
        FAR,
        "Reject a candidate, and set its text aside, if the champion needs more than this many times as "
        "many bits per byte for the new text as for the old: noise, or another kind of text than before. null: never",
        gt=1,
        le=1000,
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the bootstrap")

    def problems(self) -> list[Problem]:
        needed = round(TAIL / (1 - self.confidence))
        if self.resamples < needed:
            allowed = f"at least {needed} for a confidence of {self.confidence}: {TAIL} of them beyond the bound"
            return [Problem("resamples", self.resamples, allowed)]
        return []


class PromoteSpec(StageSpec):
    """One application of a decision. The spec has the execution's id, so that each execution checks the registry."""

    execution: str = Field("", pattern=r"^(\w[\w.-]*)?$", max_length=200, description="Id of the execution")
