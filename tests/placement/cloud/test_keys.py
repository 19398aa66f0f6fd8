"""Keys appear in no command line, log, record or file that outlives the machine, except SkyPilot's own state."""

import time
from pathlib import Path

import pytest

from tests.placement.cloud.account import BUCKET, KEYS, client
from tests.placement.cloud.jobs import MIDDLE, nothing_is_left, rented
from tests.placement.cloud.world import Cloud
from tests.placement.runs import done, start
from tests.placement.world import root

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(900)]
TOKEN = "hf_" + "Z" * 30
SECRETS = [TOKEN.encode(), KEYS["AWS_SECRET_ACCESS_KEY"].encode()]
# the files in which SkyPilot keeps a job's secrets, on its API server and, while the job runs, on the job's machines
OF_SKYPILOT = (".sky/", "sky_logs/", ".aws/")


def has_secret(content: bytes) -> bool:
    return any(secret in content for secret in SECRETS)


def command_lines() -> list[str]:
    """Return the command lines, on the host and on machines, that contain a secret."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            content = entry.read_bytes()
        except OSError:
            continue
        if has_secret(content):
            found.append(content.replace(b"\0", b" ").decode(errors="replace")[:200])
    return found


def test_keys_stay_where_they_are_used(aws: Cloud, tmp_path: Path) -> None:
    run = start(tmp_path, MIDDLE, rented(), HF_TOKEN=TOKEN)
    seen: set[str] = set()
    while run.process.poll() is None:
        seen |= set(command_lines())
        time.sleep(0.2)
    done(run)
    nothing_is_left(aws)
    assert not seen
    texts = [path for path in tmp_path.rglob("*") if path.is_file() and has_secret(path.read_bytes())]
    assert not texts
    s3 = client("s3", "us-east-1")
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for each in page.get("Contents", []):
            assert not has_secret(s3.get_object(Bucket=BUCKET, Key=each["Key"])["Body"].read()), each["Key"]
    home = root() / "home"
    kept = [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file() and has_secret(path.read_bytes())]
    assert [path for path in kept if not path.startswith(OF_SKYPILOT)] == []
