"""Check the stages that SkyPilot places."""

import importlib.util
import os
from collections.abc import Iterator

from baton.infra.storage.buckets import is_bucket, storage_of
from baton.infra.tracking.redact import HIDDEN, redact_text
from baton.tasks.core.spec import Problem
from baton.workflows.checks.run_context import RunContext, placements_of, runs_on_a_cluster


def placements(context: RunContext) -> Iterator[Problem]:
    """Check that a placed stage has as many nodes as its layout, an accelerator for each process, its secrets, and, if
    its nodes need one, a folder that they share."""
    specs = context.stages()
    for name, placement in placements_of(context).items():
        spec = specs[name]
        nodes, devices, field = spec.nodes(), spec.devices(), spec.nodes_fields()
        if placement.nodes != nodes:
            what = f"as {field} {'are together' if ' and ' in field else 'is'}" if field else "this stage runs on one"
            yield Problem(f"{name}.placement.nodes", placement.nodes, f"{nodes}: {what}")
        for number, chips in enumerate(placement.accelerators if spec.exact_devices or devices > 1 else ()):
            chip, _, count = chips.partition(":")
            if float(count or 1) != devices:
                allowed = f"{chip}:{devices}: one for each of {spec.devices_fields()}"
                yield Problem(f"{name}.placement.accelerators.{number}", chips, allowed)
        if placement.setup and redact_text(placement.setup) != placement.setup:
            allowed = (
                "lines without secrets: a recipe is stored as plain text. Set an environment variable, name it in "
                f"{name}.placement.secrets: [NAME], and write $NAME here"
            )
            yield Problem(f"{name}.placement.setup", HIDDEN, allowed)
        for number, secret in enumerate(placement.secrets if _starts_jobs() else ()):
            if not os.environ.get(secret):
                allowed = f"an environment variable that is set here: export {secret}=…"
                yield Problem(f"{name}.placement.secrets.{number}", secret, allowed)
        storage = storage_of(placement.storage)
        if is_bucket(storage) and (shared := spec.shared_folder_for()):
            allowed = f"a folder that the machines share, as {shared} work through files; or leave {shared} out"
            yield Problem(f"{name}.placement.storage", storage, allowed)
        if not runs_on_a_cluster() and (place := placement.out_of_reach(storage, placement.infra)):
            allowed = f"a bucket that machines of {place} reach, as s3://my-bucket/baton; or set BATON_STORAGE to it"
            yield Problem(f"{name}.placement.storage", storage, allowed)


def _starts_jobs() -> bool:
    """Return whether this machine starts SkyPilot's jobs, rather than a cluster's connector."""
    return importlib.util.find_spec("sky") is not None and not runs_on_a_cluster()
