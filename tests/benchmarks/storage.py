"""How fast an artifact goes into storage and comes back: `python -m tests.benchmarks.storage [MEGABYTES]`

Sent to an S3 server on this machine (moto's: a Python process, and slower than any real one) beside plain `s3fs.put`
and `get` of the same folder, and to a folder beside `cp -r`. Ours cuts files into parts of 16 MB, plain s3fs those of
more than 100 MB: a real S3 takes parts side by side, moto copies them once more when the last one is there. What is
sent is checked by its sizes, what comes back by its digests; theirs is not checked at all.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from uuid import uuid4

from flytekit import FlyteContextManager

from tasks.core.manifest import write_manifest
from tasks.core.stored import fetch, send
from tests.benchmarks.harness import median_ratio, report, side_by_side
from tests.s3 import s3_server

MEGABYTES, ROUNDS = 500, 3
SMALL = 100  # files of 50 kB, beside three large ones


def main(scratch: Path, megabytes: int) -> None:
    output = scratch / "output"
    digest = _artifact(output, megabytes)
    os.environ["BATON_CACHE"] = str(scratch / "cache")
    shared = scratch / "shared"
    with s3_server(scratch) as server, server.flyte(scratch):
        plain = FlyteContextManager.current_context().file_access.get_filesystem_for_path(server.address)
        sent = send(str(output), f"{server.address}/ours")

        def fetch_ours() -> None:
            shutil.rmtree(scratch / "cache", ignore_errors=True)
            fetch(sent, digest)

        def fetch_plainly() -> None:
            shutil.rmtree(scratch / "plain", ignore_errors=True)
            plain.get(f"{sent}/", str(scratch / "plain"), recursive=True)

        def send_ours() -> None:
            where = f"{server.address}/{uuid4().hex}"
            send(str(output), where)
            plain.rm(where, recursive=True)

        def send_plainly() -> None:
            where = f"{server.address}/{uuid4().hex}"
            plain.put(f"{output}/", f"{where}/", recursive=True)
            plain.rm(where, recursive=True)

        def share_ours() -> None:
            shutil.rmtree(shared, ignore_errors=True)
            send(str(output), str(shared))

        def share_plainly() -> None:
            shutil.rmtree(shared, ignore_errors=True)
            subprocess.run(["cp", "-r", output, shared], check=True)
            subprocess.run(["sync", "-f", shared], check=True)

        send_ours()  # the first connection
        went = side_by_side({"ours": send_ours, "plain": send_plainly}, ROUNDS)
        came = side_by_side({"ours": fetch_ours, "plain": fetch_plainly}, ROUNDS)
        copied = side_by_side({"ours": share_ours, "plain": share_plainly}, ROUNDS)
    figures = {
        "send_over_s3fs": median_ratio(went["ours"], went["plain"]),
        "fetch_over_s3fs": median_ratio(came["ours"], came["plain"]),
        "folder_over_cp": median_ratio(copied["ours"], copied["plain"]),
        "send_mb_per_s": megabytes / min(went["ours"]),
        "fetch_mb_per_s": megabytes / min(came["ours"]),
    }
    rows = [
        ("artifact", f"{megabytes} MB in {SMALL + 3} files"),
        *[
            (name, f"{min(times['ours']):.2f} s; plainly {min(times['plain']):.2f} s")
            for name, times in {"send to S3": went, "fetch from S3": came, "send to a folder": copied}.items()
        ],
    ]
    report("storage", rows, figures)


def _artifact(folder: Path, megabytes: int) -> str:
    folder.mkdir()
    chance = random.Random(0)
    for number in range(SMALL):
        (folder / f"small-{number}").write_bytes(chance.randbytes(50_000))
    for number in range(3):
        (folder / f"large-{number}").write_bytes(chance.randbytes(megabytes * 1_000_000 // 3 - SMALL * 50_000 // 3))
    return write_manifest(folder, "tokenizer", {}).digest


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch), int(sys.argv[1]) if len(sys.argv) > 1 else MEGABYTES)
