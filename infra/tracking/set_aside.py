"""Find the versions of a registered model that continuous training does not continue from.

The promoted and kept versions form a tree: each has the version that its training continued from as a tag. Training
continues from the champion, or from the newest version that was kept since. All but that one and its ancestors are set
aside. This depends only on where the champion is, so that moving it back undoes a move.
"""

import json
from bisect import bisect
from collections.abc import Mapping

OUTCOME_TAG = "baton.outcome"  # promoted, kept or rejected; a version without it is not (yet) a generation
REFUSED_TAG = "baton.decision.refused"  # why its decision was not carried out: the champion was moved
PARENT_TAG = "baton.parent"  # the version that its training continued from, or 0
TERMS_TAG = "baton.champion"  # [{"since", "until", "why"}, …], oldest first
ROLLED_BACK = "rolled back"  # the beginning of `why` in a term after a rollback


def set_aside(tags: Mapping[int, Mapping[str, str]], champion: int | None) -> set[int]:
    """Return the versions that are set aside, given the tags of all versions. If the champion is neither promoted nor
    kept, the version that was champion last counts instead."""
    made = sorted(number for number, each in tags.items() if each.get(OUTCOME_TAG) in ("promoted", "kept"))
    if not made:
        return set()
    parents: dict[int, int | None] = {}
    for number in made:  # without the tag, or if that version was deleted, the parent is the previous version
        parent = tags[number].get(PARENT_TAG, "")
        older = made[
            : bisect(made, min(int(parent), number - 1) if parent.isdecimal() and len(parent) < 10 else number - 1)
        ]
        parents[number] = older[-1] if older else None

    def served(number: int) -> tuple[str, bool, int]:
        return _last_term(tags[number]), tags[number][OUTCOME_TAG] == "promoted", number

    at: int | None = champion if champion in parents else max(made, key=served)
    newest, since = at, {at}
    for number in made:
        if parents[number] in since:
            if tags[number][OUTCOME_TAG] == "promoted":  # versions kept before it no longer follow the champion
                newest, since = at, {at}
            else:
                newest = number
                since.add(number)
    aside, step = {*made}, newest
    while step is not None:
        aside.remove(step)
        step = parents[step]
    return aside


def _last_term(tags: Mapping[str, str]) -> str:
    """The time at which a version became the champion last, or ceased to be it; empty if it never was."""
    try:
        last = json.loads(tags.get(TERMS_TAG, "[]"))[-1]
        return str(last.get("since") or last.get("until") or "")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return ""  # no term, or a tag that Baton did not write
