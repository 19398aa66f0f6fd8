"""Choose what is removed from a home."""

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from baton.infra.text import brief
from baton.tasks.artifacts import kind_of
from baton.workflows.gc.found import CHECKPOINTS, DOWNLOADS, LEFTOVERS, UNFINISHED, Item, is_removed
from baton.workflows.gc.needs import FINDINGS, Needs

DAY_S = 86_400.0
UNUSED_S = 30 * DAY_S  # unless an option chooses by age, run or kind
LEFT_S = DAY_S  # age of what killed processes left
FILES = (CHECKPOINTS, UNFINISHED, DOWNLOADS, LEFTOVERS)  # kinds that are no artifacts


@dataclass(frozen=True)
class Selection:
    """The options of the command. Without `older_than_s`, what was chosen by its run or its kind goes at any age."""

    older_than_s: float | None = None
    runs: Collection[str] = ()  # ids of executions
    kinds: Collection[str] = ()

    @property
    def is_explicit(self) -> bool:
        return bool(self.runs or self.kinds)

    def oldest_s(self, item: Item) -> float:
        """Return the age from which an item goes."""
        if self.older_than_s is not None:
            return self.older_than_s
        return 0.0 if self.is_explicit or item.kind == CHECKPOINTS else LEFT_S if item.kind == LEFTOVERS else UNUSED_S


@dataclass(frozen=True)
class Choice:
    """An item, and the reason why it stays, or "" if it goes."""

    item: Item
    stays: str


def chosen(items: Iterable[Item], needs: Needs, selection: Selection) -> list[Choice]:
    """Return all items with files, those of each kind together. An adapter's base stays as long as the adapter."""
    listed = sorted((item for item in items if not is_removed(item)), key=lambda item: (item.kind, -item.used))
    choices = [Choice(item, _stays(item, needs, selection)) for item in listed]
    bases = {_base(each.item): each.item.digest for each in choices if each.stays}
    return [
        Choice(each.item, f"the base of the adapter {bases[each.item.digest][:12]}")
        if not each.stays and each.item.digest in bases and each.item.digest
        else each
        for each in choices
    ]


def _stays(item: Item, needs: Needs, selection: Selection) -> str:
    """Return the first reason for which an item stays, or ""."""
    is_artifact = bool(item.manifest)
    if reason := needs.jobs.get(item.job.name, "") if item.job else "":
        return reason
    if reason := needs.required.get(item.digest, ""):
        return reason
    if item.kind == DOWNLOADS and needs.running:
        return needs.running
    if selection.kinds and item.kind not in selection.kinds:
        return "of another kind"
    if selection.runs and needs.makers.get(item.digest, set()).isdisjoint(selection.runs):
        return "of another run"
    if (time.time() - item.used) < (oldest_s := selection.oldest_s(item)):
        return f"used within {brief(oldest_s)}"
    if is_artifact and not selection.is_explicit:
        if reason := needs.preferred.get(item.digest, ""):
            return reason
        if kind_of(item.kind).family in FINDINGS:
            return "a report or a measurement"
        if item.digest not in needs.sources:
            return "nothing was made from it"
    return ""


def _base(item: Item) -> str:
    base: Any = item.manifest.fields.get("base") if item.manifest else None
    return str(base.get("digest", "")) if isinstance(base, dict) else ""
