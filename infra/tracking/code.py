"""The code version of a run: the commit, whether the tree is dirty, and a digest of the changes."""

import json
import os
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

from blake3 import blake3

from baton import SEARCH_PATH
from baton.infra.pod import code_archive, this_pod
from baton.infra.tracking.remote_run import CODE

PROJECT = Path(__file__).resolve().parents[2]
LARGE = 1 << 20  # bytes; only the name and size of a larger untracked file are digested


@cache
def code_version() -> dict[str, str]:
    """{"commit", "dirty", "diff"}: `diff` is BLAKE3 over tracked changes and untracked files, present only if `dirty`
    is "true". A tree that is not a git checkout has commit "unknown". On a job's machine it is the version of the
    checkout that sent it there; in a pod, that of the client, with the name of the `archive` of code that it sent, or,
    if the client had none, that of the archive or of the registered task."""
    archive = {"archive": code_archive()} if this_pod() and code_archive() else {}
    if CODE in os.environ:
        return dict(json.loads(os.environ[CODE])) | archive
    if this_pod() and (registered := code_archive() or os.environ.get("FLYTE_INTERNAL_TASK_VERSION")):
        return {"commit": registered, "dirty": "unknown"}
    if not SEARCH_PATH:  # an installed package, whose folder may be in a user's checkout
        return {"commit": f"baton-{version('baton')}", "dirty": "unknown"}
    commit = _git("rev-parse", "--verify", "--quiet", "HEAD")
    if commit is None and _git("rev-parse", "--git-dir") is None:
        return {"commit": "unknown", "dirty": "unknown"}
    changes = _git("diff", "--binary", "HEAD") if commit else b""
    untracked = (_git("ls-files", "--others", "--exclude-standard", "-z") or b"").split(b"\0")[:-1]
    found = {"commit": commit.decode().strip() if commit else "none", "dirty": "false"}
    if changes or untracked or not commit:
        found |= {"dirty": "true", "diff": _digest(changes or b"", [name.decode() for name in untracked])}
    return found


def _digest(changes: bytes, untracked: list[str]) -> str:
    hasher = blake3(changes)
    for name in sorted(untracked):
        path = PROJECT / name
        if not path.is_file():
            continue  # a broken link, or just deleted
        size = path.stat().st_size
        hasher.update(f"\0{name}\0{size}\0".encode())
        if 0 < size <= LARGE:
            hasher.update(path.read_bytes())
    return hasher.hexdigest()


def _git(*words: str) -> bytes | None:
    return git("-C", str(PROJECT), *words)


def git(*words: str) -> bytes | None:
    """Git's output; None if the command fails (no git, no checkout, no commit yet)."""
    try:
        done = subprocess.run(["git", *words], capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
