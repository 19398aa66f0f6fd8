"""The way and the step in which an engine ended, for a comparison with the end of its next start."""

import re
from dataclasses import dataclass, field

from baton.infra.tracking.redact import redact_text

VARYING = re.compile(r"\S*[\d/\\]\S*")  # words with addresses, process ids, times, temporary paths
LONGEST = 300  # characters of an error that are compared


@dataclass(frozen=True)
class Death:
    """The way and the step in which a start of an engine ended. Equal deaths are the same failure, whichever rank
    reported it."""

    step: int
    way: str  # "was killed by SIGABRT"
    summary: str = field(default="", compare=False)  # for the user


def death(steps: list[int], way: str, summary: str) -> Death | None:
    """Return a death, or None if no rank has reported a step. `steps` are those that the ranks had completed."""
    return Death(max(steps), way, summary) if steps else None


def unvarying(error: str) -> str:
    """Return the part of an exception's text that is the same whenever it is raised, without secrets."""
    return VARYING.sub("", redact_text(error)[:LONGEST])
