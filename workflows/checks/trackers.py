"""Check that the trackers that a recipe names can get the records of its run: their libraries are installed, and W&B is
offline or has a key."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from baton.infra.commands import command
from baton.infra.tracking.sinks import TRACKERS
from baton.tasks.core.spec import Problem
from baton.workflows.checks.run_context import RunContext, runs_on_a_cluster

ALSO = "tracking.also"
OFFLINE = "WANDB_MODE=offline, which keeps the runs for `wandb sync`"
REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")


def problems_of_trackers(context: RunContext) -> Iterator[Problem]:
    """Requirements of the trackers beside MLflow that are missing here."""
    tracking = context.specs.get("tracking")
    names = dict.fromkeys(tracking.also) if tracking else {}
    if names and runs_on_a_cluster():
        allowed = "none on a Flyte cluster, whose pods deliver to MLflow alone: leave it out"
        yield Problem(ALSO, [*names], allowed)
        return
    for name in names:
        tracker = TRACKERS[name]
        if not tracker.is_installed():
            install = command(f"python -m pip install '{tracker.package}{tracker.version}'")
            yield Problem(ALSO, name, f"a tracker whose package is installed: `{install}`")
    if "wandb" in names:
        yield from wandb_problems(os.environ)
    if "trackio" in names and (remote := [name for name in REMOTE if os.environ.get(name)]):
        allowed = f"the local store: unset {', '.join(remote)}, and upload it with `trackio sync`"
        yield Problem(ALSO, "trackio", allowed)


def wandb_problems(environment: Mapping[str, str]) -> Iterator[Problem]:
    """Check that W&B is offline or has a key, without contacting it."""
    mode = environment.get("WANDB_MODE", "").lower()
    if mode == "disabled":
        yield Problem(ALSO, "wandb", f"W&B, which WANDB_MODE=disabled turns off: unset it, or set {OFFLINE}")
    elif mode not in ("offline", "dryrun") and not environment.get("WANDB_API_KEY") and not _is_logged_in(environment):
        yield Problem(ALSO, "wandb", f"W&B with a key: `wandb login`, WANDB_API_KEY, or {OFFLINE}")


def _is_logged_in(environment: Mapping[str, str]) -> bool:
    """Return whether `wandb login` has written a key, which is in the file that curl uses."""
    host = urlsplit(environment.get("WANDB_BASE_URL", "")).hostname or "wandb"
    try:
        return host in Path(environment.get("NETRC") or "~/.netrc").expanduser().read_text(errors="replace")
    except OSError:
        return False
