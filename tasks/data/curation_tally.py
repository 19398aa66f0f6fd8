"""Count what each step of a curation dropped, exactly, by step and source, with samples."""

from collections.abc import Iterable

from pydantic import BaseModel

from baton.tasks.core.job import StageError
from baton.tasks.data.curate_spec import CurateStep, step_names
from baton.tasks.data.documents import Document

TALLY = "curation.json"  # in the corpus' record
SAMPLES = 3  # dropped documents shown by reason, step and source
SAMPLE_CHARACTERS = 600
MOST_REASONS, REASON_CHARACTERS = 100, 200  # for each step and source; a function may write numbers in its reasons
OTHER = "other reasons"


class Sample(BaseModel):
    """A dropped document."""

    source: str
    id: str
    text: str  # the first characters
    what: str = ""  # details of the reason: "near duplicate of pages.jsonl#17", "has a text of sums, row 12"


class Count(BaseModel):
    """The effect of a step on one source; sizes are in bytes of UTF-8."""

    documents: int = 0  # number that reached the step
    bytes: int = 0
    dropped: int = 0
    dropped_bytes: int = 0
    changed: int = 0  # kept with another text
    reasons: dict[str, int] = {}
    samples: dict[str, list[Sample]] = {}  # samples for each reason

    def drop(self, item: Document, size: int, reason: str, what: str = "") -> None:
        self.dropped += 1
        self.dropped_bytes += size
        reason = self._counted_as(reason)
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        shown = self.samples.setdefault(reason, [])
        if len(shown) < SAMPLES:
            shown.append(Sample(source=item.source, id=item.id, text=item.text[:SAMPLE_CHARACTERS], what=what))

    def add(self, other: "Count") -> None:
        """Add the count of documents that come later."""
        for name in ("documents", "bytes", "dropped", "dropped_bytes", "changed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for given, number in other.reasons.items():
            reason = self._counted_as(given)
            self.reasons[reason] = self.reasons.get(reason, 0) + number
            self.samples[reason] = [*self.samples.get(reason, []), *other.samples[given]][:SAMPLES]

    def _counted_as(self, reason: str) -> str:
        reason = reason[:REASON_CHARACTERS]
        return reason if reason in self.reasons or len(self.reasons) < MOST_REASONS else OTHER

    @property
    def share(self) -> float:
        """The share of the documents that were dropped."""
        return self.dropped / self.documents if self.documents else 0.0


class Tally(BaseModel):
    """`curation.json`: the counts of each step, by source ("" if there is one without a name)."""

    steps: dict[str, dict[str, Count]] = {}

    def of(self, step: str, source: str | None) -> Count:
        return self.steps.setdefault(step, {}).setdefault(source or "", Count())

    def add(self, other: "Tally") -> None:
        """Add the tally of documents that come later."""
        for step, sources in other.steps.items():
            for source, count in sources.items():
                self.of(step, source).add(count)

    def totals(self) -> dict[str, Count]:
        """Each step's count over all sources."""
        return {step: _sum(sources.values()) for step, sources in self.steps.items()}

    def facts(self) -> dict[str, dict[str, int]]:
        """The numbers of documents, as facts of the corpus."""
        return {
            step: {"documents": count.documents, "dropped": count.dropped, "changed": count.changed}
            for step, count in self.totals().items()
        }

    def check(self, steps: list[CurateStep], passed: int = 0) -> None:
        """Raise StageError if a step dropped everything that reached it, or more than it may. `passed`: the number of
        documents that passed all steps before and were not counted."""
        totals = self.totals()
        for number, (name, step) in enumerate(zip(step_names(steps), steps, strict=True)):
            count = totals.get(name, Count())
            reasons = sorted(count.reasons.items(), key=lambda item: (-item[1], item[0]))[:5]
            why = ", ".join(f"{reason} {times:,}" for reason, times in reasons)
            documents = count.documents + passed
            share = count.dropped / documents if documents else 0.0
            if documents and count.dropped == documents:
                raise StageError(
                    f"curate.{number} ({name}) drops all {documents:,} documents that reach it ({why}); loosen "
                    "it or leave it out"
                )
            if share > step.max_dropped:
                raise StageError(
                    f"curate.{number} ({name}) drops {share:.1%} of {documents:,} documents ({why}), and "
                    f"max_dropped is {step.max_dropped:.1%}; raise it, loosen the step, or leave it out"
                )


def _sum(counts: Iterable[Count]) -> Count:
    total = Count(reasons={}, samples={})
    for count in counts:
        total.add(count)
    return total
