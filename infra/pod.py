"""The pod of a Flyte cluster that this process is in, by the environment that Flyte's backend gives to it."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Pod:
    """One attempt at one node of an execution. It shares no files with other pods."""

    execution: str  # Flyte's id of it, unique in its project and domain
    project: str
    domain: str
    attempt: int  # from 0


def this_pod() -> Pod | None:
    """None: this process is not in a pod (a laptop, a machine that SkyPilot rented)."""
    execution = os.environ.get("FLYTE_INTERNAL_EXECUTION_ID")
    if not execution:
        return None
    return Pod(
        execution,
        os.environ.get("FLYTE_INTERNAL_EXECUTION_PROJECT", ""),
        os.environ.get("FLYTE_INTERNAL_EXECUTION_DOMAIN", ""),
        int(os.environ.get("FLYTE_ATTEMPT_NUMBER") or 0),
    )


def execution_name(project: str, domain: str, execution: str) -> str:
    """Baton's id of a Flyte execution, whose own is unique in its project and domain only."""
    return "-".join(filter(None, (project, domain, execution)))
