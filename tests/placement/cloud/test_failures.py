"""Failures on a rented cloud. Each is reported in at most ten lines with the cause and a fix."""

from pathlib import Path

import pytest

from tests.images.registry import needs_registry, registry
from tests.placement.cloud.account import BUCKET
from tests.placement.cloud.jobs import full, nothing_is_left, rented
from tests.placement.cloud.world import Cloud
from tests.placement.runs import SHORT, Run, start
from tests.placement.world import start_api_server, stop_api_server, until

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(900)]
REGIONS = ("us-east-1", "us-west-2", "eu-west-1")


def lines_of_failure(run: Run) -> list[str]:
    """Return the terminal's lines of an error, which follow the stage's last line of progress."""
    assert run.ends() != 0
    lines = [line for line in run.output().splitlines() if line.strip()]
    begin = next((number for number, line in enumerate(lines) if "failed" in line.lower() or "rror" in line), 0)
    return lines[begin:]


def assert_fails_with(run: Run, *words: str) -> None:
    """Assert that the run ends with a short error that contains these words."""
    lines = lines_of_failure(run)
    text = "\n".join(lines)
    assert len(lines) <= 10, text
    for word in words:
        assert word in text, text
    assert "Unclosed" not in run.output()
    assert "never retrieved" not in run.output()


def test_no_capacity_anywhere(aws: Cloud, tmp_path: Path) -> None:
    """The job waits, reports the reason, and continues once there is capacity."""
    aws.capacity(full(*REGIONS))
    run = start(tmp_path, SHORT, rented())
    until(lambda: "places were tried: InsufficientInstanceCapacity" in run.output(), "the reason is printed", 300)
    aws.capacity({})
    assert run.ends() == 0
    nothing_is_left(aws)


def test_wrong_keys(aws: Cloud, tmp_path: Path) -> None:
    aws.rules(keys=["AKIAWRONG"])
    keys = {"AWS_ACCESS_KEY_ID": "AKIAWRONG", "AWS_SECRET_ACCESS_KEY": "wrong"}
    assert_fails_with(start(tmp_path, SHORT, rented(), **keys), "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID")


def test_a_quota_of_zero(aws: Cloud, tmp_path: Path) -> None:
    aws.capacity(dict.fromkeys(REGIONS, "VcpuLimitExceeded"))
    run = start(tmp_path, SHORT, rented())
    until(lambda: "VcpuLimitExceeded" in run.output() or "vCPU" in run.output(), "the reason is printed", 300)
    run.ctrl_c()
    assert run.ends(120) == 1
    nothing_is_left(aws)


def test_a_bucket_that_is_missing(aws: Cloud, tmp_path: Path) -> None:
    assert_fails_with(start(tmp_path, SHORT, rented(storage="s3://no-such-bucket/baton")), "no-such-bucket")


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidRequest"])
def test_a_bucket_that_is_refused(aws: Cloud, tmp_path: Path, code: str) -> None:
    aws.rules(buckets={BUCKET: code})
    assert_fails_with(start(tmp_path, SHORT, rented()), code, BUCKET)


def test_a_setup_that_fails(aws: Cloud, tmp_path: Path) -> None:
    assert_fails_with(start(tmp_path, SHORT, rented(setup="echo no driver here >&2; exit 3")), "no driver here")
    nothing_is_left(aws)


@needs_registry
def test_an_image_that_is_not_there(aws: Cloud, tmp_path: Path) -> None:
    """No machine is rented for a missing image."""
    with registry(tmp_path) as host:
        assert_fails_with(
            start(tmp_path, SHORT, rented(image=f"{host}/not/there:1")), f"{host}/not/there:1 is not in its registry"
        )
    nothing_is_left(aws)


def test_a_disk_that_is_full(aws: Cloud, tmp_path: Path) -> None:
    """The job's own files fill the disk, and are removed with the job, so that SkyPilot can record its end."""
    filled = rented()["placement"]["setup"] + '; dd if=/dev/zero of="$here/filled" bs=1M; true'
    assert_fails_with(start(tmp_path, SHORT, rented(setup=filled)), "No space left on device")
    nothing_is_left(aws)


def test_a_price_over_the_limit(aws: Cloud, tmp_path: Path) -> None:
    assert_fails_with(start(tmp_path, SHORT, rented(max_price_per_hour=0.01)), "max_price_per_hour", "0.03")


def test_a_server_that_is_away(aws: Cloud, tmp_path: Path) -> None:
    server = {"SKYPILOT_API_SERVER_ENDPOINT": "http://127.0.0.1:46999"}
    run = start(tmp_path, SHORT, rented(), **server)
    until(lambda: "127.0.0.1:46999" in run.output() or run.process.poll() is not None, "the error is printed", 180)
    run.ctrl_c()
    assert_fails_with(run, "127.0.0.1:46999")


def test_a_server_that_goes_away_and_comes_back(aws: Cloud, tmp_path: Path) -> None:
    run = start(tmp_path, SHORT | {"steps": 600}, rented())
    run.reaches(20)
    stop_api_server()
    until(lambda: "unreachable" in run.output(), "the error is reported", 120)
    start_api_server()
    assert run.ends() == 0
    nothing_is_left(aws)
