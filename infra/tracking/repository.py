"""The user's repository: the commit of the working directory, and the changes since."""

import base64
import json
import os
import re
import subprocess
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path

from blake3 import blake3

from baton.infra.tracking.code import git
from baton.infra.tracking.redact import redact_code, redact_text

VARIABLE = "BATON_REPOSITORY"  # in a pod: the repository of the client that started the run
LARGEST_DIFF = 100_000  # bytes that are recorded
LARGEST_VARIABLE = 60_000
_REMOTE = re.compile(r"\w+://\S+|[\w.-]+@[\w.-]+:\S+")  # an origin that others can reach


@cache
def repository() -> dict[str, str]:
    """{"commit", "origin", "path", "diff", "digest", "untracked"} of the working directory's repository, as far as they
    apply; empty outside of a repository. `path` is the working directory, relative to the repository's root. `diff` has
    the changes of tracked files without secrets, cut if it is long; `digest` is BLAKE3 of the complete diff;
    `untracked` is the number of files and folders that git does not know."""
    if VARIABLE in os.environ:
        return dict(json.loads(zlib.decompress(base64.b64decode(os.environ[VARIABLE]))))
    root = _git("rev-parse", "--show-toplevel")
    if not root:
        return {}
    facts = {
        "path": Path.cwd().relative_to(root.strip()).as_posix(),
        "commit": _git("rev-parse", "HEAD").strip(),
    }
    origin = _git("remote", "get-url", "origin").strip()
    if _REMOTE.fullmatch(origin):
        facts["origin"] = redact_text(origin)
    facts |= _changes()
    untracked = len(_git("ls-files", "--others", "--exclude-standard", "--directory").splitlines())
    facts |= {"untracked": str(untracked) if untracked else ""}
    return {name: value for name, value in facts.items() if value}


def for_pods() -> dict[str, str]:
    """The environment variable that passes the repository's facts to a run's pods, without a diff that is too long."""
    facts = repository()
    for known in (facts, {name: value for name, value in facts.items() if name != "diff"}):
        text = base64.b64encode(zlib.compress(json.dumps(known).encode(), 9)).decode()
        if known and len(text) <= LARGEST_VARIABLE:
            return {VARIABLE: text}
    return {}


def _changes() -> dict[str, str]:
    """{"diff", "digest"} of tracked files, read in pieces: a changed data file may have gigabytes."""
    with (
        suppress(OSError),
        subprocess.Popen(
            ["git", "diff", "--no-color", "--no-ext-diff", "HEAD"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as git,
    ):
        assert git.stdout
        diff, size, hasher = b"", 0, blake3()
        while piece := git.stdout.read(1 << 20):
            diff += piece[: LARGEST_DIFF - len(diff)]
            size += len(piece)
            hasher.update(piece)
        if size:
            cut = f"\n… {size:,} bytes in all\n" if size > LARGEST_DIFF else ""
            shown = redact_code(diff.decode(errors="replace"), literals=True)
            return {"diff": shown + cut, "digest": hasher.hexdigest()}
    return {}


def _git(*words: str) -> str:
    """Git's output; empty if the command fails (no git, no repository, no commit yet)."""
    return (git(*words) or b"").decode(errors="replace")
