"""Which versions of a registered model continuous training does not continue from.

The promoted and kept versions form a tree: each has the version that its training continued from as a tag. Training
continues from the champion, or from the newest version that was kept since. All but that one and its ancestors are set
aside. Only where the champion is decides, so that moving it back undoes a move.
"""

import json
from bisect import bisect
from collections.abc import Mapping

OUTCOME_TAG = "baton.outcome"  # promoted, kept or rejected; a version without it is not (yet) a generation
REFUSED_TAG = "baton.decision.refused"  # why its decision was not carried out: the champion was moved
PARENT_TAG = "baton.parent"  # the version that its training continued from; 0: none
TERMS_TAG = "baton.champion"  # [{"since", "until", "why"}, …], oldest first
ROLLED_BACK = "rolled back"  # begins such a term's `why`


def set_aside(tags: Mapping[int, Mapping[str, str]], champion: int | None) -> set[int]:
    """Those of the versions with these tags. Where the champion is none of the promoted and kept ones, the last that
    was champion counts."""
    made = sorted(number for number, each in tags.items() if each.get(OUTCOME_TAG) in ("promoted", "kept"))
    if not made:
        return set()
    parents: dict[int, int | None] = {}
    for number in made:  # without the tag, or of a version that was deleted: the one before
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
            if tags[number][OUTCOME_TAG] == "promoted":  # what was kept before it is no longer the champion's
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
    """When a version became the champion last, or ceased to be it; empty if it never was."""
    try:
        last = json.loads(tags.get(TERMS_TAG, "[]"))[-1]
        return str(last.get("since") or last.get("until") or "")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return ""  # no term, or a tag that Baton did not write
