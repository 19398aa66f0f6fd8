"""The reasons why a job waits, read from SkyPilot's record and its controller's log, which SkyPilot's own functions
write."""

import logging
import time
from typing import Any

import pytest

pytest.importorskip("sky", reason="SkyPilot is not in images/gpu.txt")
import sky
from sky import sky_logging
from sky.backends.cloud_vm_ray_backend import _format_provision_failure_blocks
from sky.exceptions import CommandError, ResourcesUnavailableError
from sky.jobs.state import ManagedJobStatus
from sky.schemas.api.responses import ManagedJobRecord
from sky.utils.common_utils import format_exception

from baton.infra.placement.failure import LINES, WIDTH, failure
from baton.infra.placement.waiting import failed_launch, waits_for

NO_CAPACITY = (
    "Failed to acquire resources in all zones in us-east-1 for {AWS(m6i.large)}.\nReason: An error occurred "
    "(InsufficientInstanceCapacity) when calling the RunInstances operation (reached max retries: 4): We currently do "
    "not have sufficient m6i.large capacity."
)
NO_QUOTA = "Found no quota for m6i.large in region eu-west-1. To request quotas, check the instruction."


def line(text: str) -> str:
    """Return a line as a controller writes it."""
    record = logging.LogRecord("sky", logging.INFO, "recovery_strategy.py", 1173, text, None, None)
    record.created = time.mktime((2026, 11, 30, 7, 1, 2, 0, 0, -1))
    return str(sky_logging.FORMATTER.format(record)).replace("\r", "\n") + "\n"


def unavailable(**why: str) -> str:
    """Return the end of the log of a launch that found no place."""
    each: dict[Any, Exception] = {
        sky.Resources(infra=f"slurm/{place}", instance_type="2CPU--4GB"): ResourcesUnavailableError(reason)
        for place, reason in why.items()
    }
    error = ResourcesUnavailableError("Failed to provision all\n" + _format_provision_failure_blocks(each))
    return line(f"Failed to launch a cluster with error: {format_exception(error)})")


def test_a_cloud_s_reason_is_reported_once_with_the_number_of_places_and_the_next_try() -> None:
    log = line("Launching") + unavailable(alpha=NO_CAPACITY, beta=NO_CAPACITY)
    log += line("Retrying to launch the cluster in 61.3 seconds.")
    found = failed_launch(log)
    assert found is not None
    assert found.message() == (
        "all 2 places were tried: Slurm (alpha) and 1 more: InsufficientInstanceCapacity: We currently do not have "
        "sufficient m6i.large capacity; next try 61 s after 07:01:02"
    )


def test_different_reasons_are_all_reported_and_only_those_of_the_last_launch() -> None:
    log = unavailable(alpha=NO_CAPACITY) + line("Retrying to launch the cluster in 60.0 seconds.")
    found = failed_launch(log + unavailable(beta=NO_CAPACITY, gamma=NO_QUOTA))
    assert found is not None and found.retry_s is None
    assert [reason.partition(":")[0] for reason in found.reasons] == ["Slurm (beta)", "Slurm (gamma)"]
    assert "Found no quota for m6i.large" in found.message()


def test_the_cloud_s_answers_are_taken_from_the_log_where_the_summary_has_none() -> None:
    """On AWS, SkyPilot 0.14.1 writes summaries without the cloud's answers."""
    answer = line("create_instances: Attempt failed with " + NO_CAPACITY.partition("Reason: ")[2])
    summary = "Failed to acquire resources in us-east-1a for {AWS(m6i.large[Spot], cpus=2+), AWS(m6i.large)}. "
    found = failed_launch(answer * 2 + unavailable(alpha=summary, beta=summary.replace("1a", "1b")))
    assert found is not None
    assert found.message() == (
        "all 2 places were tried: InsufficientInstanceCapacity: We currently do not have sufficient m6i.large capacity"
    )


def test_a_launch_that_failed_on_its_machine_is_reported_with_the_error() -> None:
    error = CommandError(1, "mount.sh", "rclone: FUSE is missing", None)
    found = failed_launch(line(f"Failed to launch a cluster with error: {format_exception(error)})"))
    assert found is not None and found.places == 0
    assert "FUSE is missing" in found.message() or "failed with return code 1" in found.message()


def test_a_command_that_failed_on_a_new_machine_is_reported_with_the_error_that_it_printed() -> None:
    failed = "RuntimeError: Failed to run setup commands on an instance. (exit code 1)."
    printed = "Using Python 3.11.7\nerror: Failed to read the wheel\n  cause: Permission denied\n"
    error = f"{failed} Error: ===== stdout ===== \n{printed}"
    log = line(
        f"Failed to launch a cluster with error: {error}\n===== stderr =====)\nTraceback (most recent call last):"
    )
    found = failed_launch(log)
    assert found is not None
    assert found.reasons == (f"{failed} error: Failed to read the wheel",)


def test_a_log_without_a_failure_has_none() -> None:
    assert failed_launch("") is None
    assert failed_launch(line("Launching a cluster.")) is None


@pytest.mark.parametrize(
    ("status", "schedule_state", "details", "words"),
    [
        ("PENDING", "ALIVE_BACKOFF", "In backoff, waiting for resources", "waits for SkyPilot's next try"),
        ("PENDING", "WAITING", "Waiting for other jobs to launch", "waits for other jobs to launch"),
        ("PENDING", "LAUNCHING", None, "is being started by SkyPilot's controller"),
        ("STARTING", "ALIVE", "Launching (pending: QOSGrpGRES)", "looking (Launching (pending: QOSGrpGRES))"),
    ],
)
def test_a_status_is_reported_by_its_facts(status: str, schedule_state: str, details: str | None, words: str) -> None:
    record = ManagedJobRecord(status=ManagedJobStatus(status), schedule_state=schedule_state, details=details)
    assert waits_for(record, "looking", None).startswith(words)


def test_a_failure_has_few_lines_with_the_cause_the_end_of_the_log_and_the_way_out() -> None:
    log = "├── Waiting\n" + "".join(f"(baton-x, pid=7) line {number}\n" for number in range(50)) + "✗ Job failed\n"
    text = failure("job 1 failed", "cause\n" * 3 + "w" * 900, log, "sky jobs logs 1").splitlines()
    assert sum(-(-len(each) // WIDTH) for each in text) <= LINES
    assert text[:2] == ["job 1 failed", "cause"]
    assert text[-2:] == ["line 49", "sky jobs logs 1"]
