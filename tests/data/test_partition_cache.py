"""Removal of the results of earlier partitions."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from baton.tasks.core.manifest import write_manifest
from baton.tasks.data.partition_cache import MAX_UNUSED_S, DiskCache
from tests.cluster.pod import can_be_alone

DISK_MB = 8
MAKE_ROOM = "import sys; from tests.data import test_partition_cache as t; t.fill(t.Path(sys.argv[1]), *sys.argv[2:])"


def keep(cache: Path, name: str, used: float, megabytes: float = 0.001) -> None:
    """Create a cached folder that was last used at this time, in seconds since the epoch."""
    folder = cache / name
    folder.mkdir(parents=True)
    (folder / "train-00000.parquet").write_bytes(os.urandom(int(megabytes * 1e6)))
    write_manifest(folder, "scan", {})
    os.utime(folder / "manifest.json", (used, used))


def test_what_was_not_used_for_30_days_is_removed(tmp_path: Path) -> None:
    now = time.time()
    keep(tmp_path, "old.scan", now - MAX_UNUSED_S - 60)
    keep(tmp_path, "recent.scan", now - MAX_UNUSED_S + 60)
    DiskCache(tmp_path).make_room()
    assert [path.name for path in tmp_path.iterdir()] == ["recent.scan"]


def fill(disk: Path, *shared: str) -> None:
    """Fill a small disk to 95 %, partly with files that a corpus shares, and make room on it."""
    cache = disk / "kept"
    for number in range(3):
        keep(cache, f"{number}.scan", time.time() - 100 * (number + 1), 0.95 / 3 * DISK_MB * 1024**2 / 1e6)
    for name in shared:
        os.link(cache / name / "train-00000.parquet", disk / name)
    DiskCache(cache).make_room()
    print(*sorted(path.name for path in cache.iterdir()))


@pytest.mark.skipif(not can_be_alone(), reason="mounting a small disk needs root")
@pytest.mark.parametrize(
    ("shared", "left"),
    [
        ([], ["0.scan", "1.scan"]),
        (["2.scan"], ["0.scan", "2.scan"]),
        (["0.scan", "1.scan", "2.scan"], ["0.scan", "1.scan", "2.scan"]),
    ],
)
def test_on_a_nearly_full_disk_what_frees_space_and_was_not_used_for_longest_is_removed_until_a_tenth_is_free(
    tmp_path: Path, shared: list[str], left: list[str]
) -> None:
    mount = f'mount -t tmpfs -o size={DISK_MB}m none "$0" && exec "$@"'
    words = ["unshare", "--mount", "sh", "-euc", mount, str(tmp_path), sys.executable, "-c", MAKE_ROOM]
    done = subprocess.run([*words, str(tmp_path), *shared], capture_output=True, text=True, check=False)
    assert done.stdout.split() == left, done.stderr
