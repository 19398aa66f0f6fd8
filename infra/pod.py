"""The Flyte pod that this process runs in, from the environment that Flyte's backend sets."""

import os
import platform
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Pod:
    """One attempt of one node of an execution. It shares no files with other pods."""

    execution: str  # Flyte's id, unique within project and domain
    project: str
    domain: str
    attempt: int  # counts from 0
    name: str  # the pod's: <execution>-n0-0, for nodes of a dynamic workflow <execution>-n0-0-dn3-0

    @property
    def execution_name(self) -> str:
        """Baton's id of the execution."""
        return execution_name(self.project, self.domain, self.execution)


def this_pod() -> Pod | None:
    """Return the pod of this process; None if it is not in a pod but, for example, on a machine that SkyPilot
    rented."""
    execution = os.environ.get("FLYTE_INTERNAL_EXECUTION_ID")
    if not execution:
        return None
    return Pod(
        execution,
        os.environ.get("FLYTE_INTERNAL_EXECUTION_PROJECT", ""),
        os.environ.get("FLYTE_INTERNAL_EXECUTION_DOMAIN", ""),
        int(os.environ.get("FLYTE_ATTEMPT_NUMBER") or 0),
        _argument("--raw-output-data-prefix").rstrip("/").rpartition("/")[2] or platform.node(),
    )


def code_archive() -> str:
    """The name of this pod's code archive, derived from its content; empty: the code is the image's."""
    return _argument("--dynamic-addl-distro").rpartition("/")[2].partition(".")[0]


def _argument(option: str) -> str:
    """The value of an option of the pod's command line."""
    return dict(zip(sys.argv, sys.argv[1:], strict=False)).get(option, "")


def execution_name(project: str, domain: str, execution: str) -> str:
    """Baton's id of a Flyte execution, whose own id is unique only within project and domain."""
    return "-".join(filter(None, (project, domain, execution)))
