"""The spec of curation: the steps that decide which documents stay, and mask personal data in them.

curate:
  - language: {keep: [en], least: 0.65}
  - quality: {rules: [gopher, c4]}
    at_most_dropped: 0.5
  - pii: {emails: mask, ips: mask}
  - function: filters.py:keep
"""

from typing import Literal

from pydantic import Field

from tasks.functions import Function
from tasks.spec import Problem, Spec

# ISO 639-1 codes of the languages that lingua identifies
_CODES = (
    "af ar az be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gu he hi hr hu hy id is it ja ka kk ko la lg lt "
    "lv mi mk mn mr ms nb nl nn pa pl pt ro ru sk sl sn so sq sr st sv sw ta te th tl tn tr ts uk ur vi xh yo zh zu"
)
LANGUAGES = frozenset(_CODES.split())

Rules = Literal["gopher", "c4", "fineweb", "repetition"]


class LanguageStep(Spec):
    """Keep documents in some languages, identified by lingua from their first 2,000 characters, offline."""

    keep: list[str] = Field(min_length=1, description="languages to keep; ISO 639-1 codes")
    least: float = Field(
        0.65, gt=0, le=1, description="smallest probability of the most likely language, among all that lingua knows"
    )

    def problems(self) -> list[Problem]:
        allowed = f"an ISO 639-1 code that lingua identifies: {', '.join(sorted(LANGUAGES))}"
        return [
            Problem(f"keep.{number}", code, allowed) for number, code in enumerate(self.keep) if code not in LANGUAGES
        ]


class QualityStep(Spec):
    """datatrove's filters with its default thresholds, in this order. They are written for English."""

    rules: list[Rules] = Field(
        min_length=1,
        description="gopher (length, symbols, stop words), repetition (Gopher's repeated lines and n-grams), fineweb "
        "(line ends, short and repeated lines), c4 (also removes lines that do not end in punctuation)",
    )


class PiiStep(Spec):
    """Mask personal data with datatrove's formatter."""

    emails: Literal["mask", "keep"] = Field("mask", description="email addresses: mask as email@example.com, or keep")
    ips: Literal["mask", "keep"] = Field("mask", description="public IPv4 addresses: mask as 22.214.171.124, or keep")


class CurateStep(Spec):
    """One step: exactly one of `language`, `quality`, `pii` and `function`."""

    language: LanguageStep | None = Field(None, description="Keep documents in some languages")
    quality: QualityStep | None = Field(None, description="Rules of Gopher, C4 and FineWeb")
    pii: PiiStep | None = Field(None, description="Mask personal data")
    function: Function | None = Field(
        None,
        description="function of a document (with `id`, `source` and `text`) that returns True to keep it, and False, "
        "or the reason as a string, to drop it: `file.py:function` or `package.module:function`",
    )
    at_most_dropped: float = Field(
        1.0,
        gt=0,
        le=1,
        description="largest share of the documents that the step may drop; more is an error",
        json_schema_extra={"identity": False},  # an error or not: no other result
    )

    @property
    def kind(self) -> str:
        return next((name for name in KINDS if getattr(self, name) is not None), "")

    def problems(self) -> list[Problem]:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            return [Problem("", given or None, f"exactly one of {', '.join(KINDS)}; each step is an item of the list")]
        part: Spec = getattr(self, self.kind)
        if part is self.function:
            return []  # missing() checks it
        return [problem.under(self.kind) for problem in part.problems()]

    def missing(self) -> list[Problem]:
        """What its function lacks."""
        return self.function.problems() if self.function else []


KINDS = ("language", "quality", "pii", "function")


def step_names(steps: list[CurateStep]) -> list[str]:
    """The steps' names in reports: their kind, with a number from its second use on."""
    names: list[str] = []
    for number, step in enumerate(steps):
        uses = sum(other.kind == step.kind for other in steps[: number + 1])
        names.append(step.kind if uses == 1 else f"{step.kind}-{uses}")
    return names
