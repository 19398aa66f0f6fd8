"""Find the rank that causes a hang.

When one rank hangs, the others soon wait for it in a collective, and all look alike from outside. They differ in
whether they respond to a signal, in how far they are, and in their main threads' stacks.
"""

import linecache
import os
import re
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from baton.infra.process.heartbeat import Beat, rank_file

ANSWER_S = 2.0  # a responsive process dumps its stacks within milliseconds
SHOWN_FRAMES = 5
SHOWN_RANKS = 8
# The top frame's source line in a rank that waits for other ranks, or for a GPU that does
WAITS = re.compile(
    r"\.wait\(|\.synchronize\(|\.item\(|\.tolist\(|\.cpu\(|barrier\(|all_reduce|all_gather|all_to_all"
    r"|reduce_scatter|broadcast|\brecv\(|\bsend\("
)


@dataclass(frozen=True)
class Hang:
    """The diagnosis of a hang."""

    ranks: list[int]  # the cause; all ranks of this machine if it cannot be determined
    summary: str
    stacks: str  # their main threads' frames, formatted


def collect_stacks(job_dir: Path, beats: dict[int, Beat]) -> dict[int, str]:
    """Return each rank's stacks, dumped by faulthandler; empty for a rank that does not respond."""
    for beat in [beat for beat in beats.values() if beat.alive]:
        try:
            os.kill(beat.pid, signal.SIGUSR1)
        except ProcessLookupError:
            pass  # it has just died, and leaves an empty dump too
    deadline = time.monotonic() + ANSWER_S
    while True:
        answers = {rank: rank_file(job_dir, rank, "stacks").read_text() for rank in beats}
        if time.monotonic() > deadline:
            return answers
        time.sleep(0.1)


def judge(beats: dict[int, Beat], stacks: dict[int, str], absent: list[int], silent_s: float) -> Hang:
    """Name the rank that holds up the others. `beats` has the ranks that should be running, `absent` those that never
    sent a heartbeat; `silent_s` is the time since the last heartbeat of any rank."""
    for_long = f"no heartbeat for {silent_s:.0f} s"
    unanswered = [rank for rank in beats if not stacks[rank]]
    if unanswered:
        states = ", ".join(sorted({_state(beats[rank].pid) for rank in unanswered}))
        return Hang(
            unanswered, f"{_ranks(unanswered, 'hangs', 'hang')}: {for_long} at {_at(beats, unanswered)}; {states}", ""
        )
    if absent:
        return Hang(absent, f"{_ranks(absent, 'has', 'have')} not started: the others wait at {_at(beats, beats)}", "")
    last = min(beat.place for beat in beats.values())
    behind = [rank for rank, beat in beats.items() if beat.place == last]
    working = [rank for rank in behind if not _waits(stacks[rank])]
    to_blame = working or behind
    summary = f"{_ranks(to_blame, 'hangs', 'hang')}: {for_long} at {_at(beats, to_blame)}"
    if len(to_blame) == len(beats) > 1:
        summary = f"all {len(beats)} ranks stopped: {for_long} at {_at(beats, beats)}; the cause cannot be determined"
    elif len(behind) < len(beats):
        summary += f"; the others are at {_at(beats, [rank for rank in beats if rank not in behind])}"
    elif working and len(beats) > 1:
        summary += ", where the others wait for it"
    return Hang(to_blame, summary, "".join(_shown_stack(rank, stacks[rank]) for rank in to_blame[:SHOWN_RANKS]))


def _ranks(ranks: list[int], one: str, several: str) -> str:
    """Return the ranks with a verb."""
    return f"rank {ranks[0]} {one}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} {several}"


def _at(beats: dict[int, Beat], ranks: Iterable[int]) -> str:
    return " and ".join(sorted({str(beats[rank]) for rank in ranks}))


def _state(pid: int) -> str:
    """Return that a process does not respond, with its state from /proc if available."""
    status = Path(f"/proc/{pid}/status")
    state = re.search(r"^State:\s*(.*)$", status.read_text(), re.MULTILINE) if status.exists() else None
    return f"it does not respond ({state[1]})" if state else "it does not respond"


def _main_thread(stacks: str) -> list[str]:
    """Return the main thread's frames as `File "…", line 1 in f`, innermost first. faulthandler lists the newest thread
    first, so the main thread is the last."""
    main = re.split(r"^(?:Current thread|Thread) .*$", stacks, flags=re.MULTILINE)[-1]
    return [line.strip() for line in main.splitlines() if line.strip()]


def _waits(stacks: str) -> bool:
    """Return whether the main thread is in a collective, by its current source line."""
    frames = _main_thread(stacks)
    frame = re.match(r'File "(.*)", line (\d+) in', frames[0]) if frames else None
    return bool(frame and WAITS.search(linecache.getline(frame[1], int(frame[2]))))


def _shown_stack(rank: int, stacks: str) -> str:
    frames = "".join(f"    {frame}\n" for frame in _main_thread(stacks)[:SHOWN_FRAMES])
    return f"  Stack of rank {rank}:\n{frames}"
