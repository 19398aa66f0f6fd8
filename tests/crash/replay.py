"""Replay power cuts of the programs:

    python -m tests.crash.replay --states 40 [--seed N] [--twice] [--without-syncs] [PROGRAM …]

In every state, everything that was acknowledged must be intact, and the same program must end with the same result.
Prints JSON with the number of events, crash points and states of each program, and the problems. `--twice` records a
program that continues after a power cut. `--without-syncs` does not sync an artifact's files before its manifest, like
an earlier version; its states are only inspected, and some must have problems.
"""

import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path, PurePosixPath

import click

import baton.tasks.core.manifest
from tests.crash.disk import ROOT, WAYS, Recording, Rename, read, write
from tests.crash.programs import ACKNOWLEDGED, PROGRAMS, Program
from tests.crash.record import read_trace, recording

WORKERS = 2  # number of processes
TRIES = 200  # candidates for each requested state
_SERVER = multiprocessing.get_context("forkserver")
LIBRARIES = (
    "baton.tasks.pretrain.train",
    "baton.tasks.pretrain.trainer",
    "baton.tasks.posttrain.engine",
    "baton.tasks.posttrain.trainer",
    "baton.tasks.convert.import_model",
    "baton.tasks.publish.registry",
    "baton.infra.tracking.push",
    "baton.infra.tracking.execution",
    "tests.convert.models",
)


@dataclass(frozen=True)
class State:
    """A possible content of the disk after a power cut behind the first `point` events."""

    point: int
    way: str
    tree: dict[str, bytes | None]
    acknowledged: list[str]

    def __str__(self) -> str:
        return f"{self.way} of what was not synced at event {self.point}"


def replay(name: str, wanted: int, seed: int, twice: bool, without_syncs: bool, base: Path) -> dict[str, object]:
    program = PROGRAMS[name]
    started = time.monotonic()
    with _SERVER.Pool(WORKERS, maxtasksperchild=1) as pool:
        pool.apply(_prepare, (name, base))
        result, run = _recorded(pool, name, base, without_syncs)
        if twice:
            halfway = run.after(len(run.events) // 2, "any", seed).tree()
            shutil.rmtree(base / "root")
            write(halfway, base / "root")
            again, run = _recorded(pool, name, base, without_syncs)
            assert again == result, f"it ends with {again}, not {result}"
        chosen = list(_states(program, run, wanted, seed))
        recorded = time.monotonic()
        wrong = pool.starmap(_check, [(name, base, number, state) for number, state in enumerate(chosen)], chunksize=1)
        sound = [number for number, words in enumerate(wrong) if not words and not without_syncs]
        ended = pool.starmap(_run_again, [(name, base, number, result) for number in sound], chunksize=1)
    problems = {**dict(enumerate(wrong)), **dict(zip(sound, ended, strict=True))}
    return {
        "program": name,
        "events": len(run.events),
        "points": len({state.point for state in chosen}),
        "states": len(chosen),
        "problems": [f"{chosen[number]}: {words}" for number, words in problems.items() if words],
        "record_s": round(recorded - started, 1),
        "replay_s": round(time.monotonic() - recorded, 1),
    }


def _prepare(name: str, base: Path) -> None:
    (base / "inputs").mkdir()
    (base / "root").mkdir()
    PROGRAMS[name].make_inputs(base / "inputs")
    PROGRAMS[name].before(base / "inputs", base / "root")


def _recorded(pool: Pool, name: str, base: Path, without_syncs: bool) -> tuple[str, Recording]:
    before = read(base / "root")
    result = pool.apply(_record, (name, base, without_syncs))
    run = Recording(before, read_trace(base / "trace", base / "root", before))
    _same(run.after(len(run.events), "all").tree(), read(base / "root").tree())
    return result, run


def _record(name: str, base: Path, without_syncs: bool) -> str:
    if without_syncs:
        baton.tasks.core.manifest.sync_tree = lambda folder: None  # type: ignore[attr-defined]
    with recording(base / "trace"):
        return PROGRAMS[name].run(base / "inputs", base / "root")


def _same(replayed: dict[str, bytes | None], found: dict[str, bytes | None]) -> None:
    """Check that the recording is complete: the disk with all its events must equal the actual disk."""
    differ = [path for path in sorted(replayed.keys() | found.keys()) if replayed.get(path, 0) != found.get(path, 0)]
    if differ:
        raise AssertionError(f"the recording is not what happened: {', '.join(differ)}")


def _states(program: Program, recording: Recording, wanted: int, seed: int) -> Iterator[State]:
    """Generate distinct states: first those in which the most was promised and the least may be on the disk, then
    random ones."""
    chance = random.Random(seed)
    seen: set[int] = set()
    promised = [(point, way) for point in _promises(recording) for way in ("none", "names", "contents")]
    for number in range(wanted * TRIES):
        point, way = chance.randrange(1, len(recording.events) + 1), chance.choice(sorted(WAYS))
        if number < len(promised):
            point, way = promised[number]
        tree = recording.after(point, way, number).tree()
        tree = {path: content for path, content in tree.items() if not path.startswith(ACKNOWLEDGED)}
        state = [(path, tree[path]) for path in tree if not any(noise in path for noise in program.noise)]
        key = hash(tuple(state))
        if key in seen:
            continue
        seen.add(key)
        yield State(point, way, tree, _acknowledged(recording, point))
        if len(seen) == wanted:
            return


def _promises(recording: Recording) -> list[int]:
    """Return the points directly after an acknowledgment."""
    return [number + 1 for number, _ in _acknowledgments(recording)]


def _acknowledged(recording: Recording, point: int) -> list[str]:
    """Return all that was acknowledged before a point, including before the recording."""
    earlier = [PurePosixPath(path) for path in recording.before.tree()]
    names = [path.name for path in earlier if path.parent.name == ACKNOWLEDGED]
    return names + [name for number, name in _acknowledgments(recording) if number < point]


def _acknowledgments(recording: Recording) -> Iterator[tuple[int, str]]:
    """Return the event number and the name of each acknowledgment."""
    folder = recording.before.folders[ROOT].get(ACKNOWLEDGED)
    for number, event in enumerate(recording.events):
        if isinstance(event, Rename) and event.new:
            if event.new == (ROOT, ACKNOWLEDGED):
                folder = event.inode
            elif folder is not None and event.new[0] == folder:
                yield number, event.new[1]


def _check(name: str, base: Path, number: int, state: State) -> str | None:
    """Return the problem of a state before any program runs, or None."""
    root = base / f"state-{number}"
    here = {path: content for path, content in state.tree.items() if path.endswith("/run.json") and content}
    moved: dict[str, bytes | None] = {
        path: content.replace(bytes(base / "root"), bytes(root)) for path, content in here.items()
    }
    write(state.tree | moved, root)  # a stage's record contains the path of its job directory
    try:
        with redirect_stdout(sys.stderr):
            PROGRAMS[name].check(base / "inputs", root, state.acknowledged)
    except Exception as error:
        return _message(error)
    return None


def _run_again(name: str, base: Path, number: int, expected: str) -> str | None:
    """Run the program again, and return the problem of its result, or None. Runs in a separate process: engines are
    forks of it, and must precede anything that starts threads."""
    program, root = PROGRAMS[name], base / f"state-{number}"
    try:
        with redirect_stdout(sys.stderr):
            found = program.run(base / "inputs", root)
            if found != expected:
                return f"ends with {found}, not {expected}"
            program.check(base / "inputs", root, [path.name for path in (root / ACKNOWLEDGED).glob("*")])
    except Exception as error:
        return _message(error)
    shutil.rmtree(root)
    return None


def _message(error: Exception) -> str:
    return "".join(traceback.format_exception_only(error)).strip()[-1500:]


@click.command()
@click.argument("programs", nargs=-1, type=click.Choice(sorted(PROGRAMS)))
@click.option("--states", default=40)
@click.option("--seed", default=0)
@click.option("--twice", is_flag=True)
@click.option("--without-syncs", is_flag=True)
def main(programs: tuple[str, ...], states: int, seed: int, twice: bool, without_syncs: bool) -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    _SERVER.set_forkserver_preload([*LIBRARIES, __spec__.name])
    for name in programs or sorted(PROGRAMS):
        with tempfile.TemporaryDirectory(prefix="baton-crash-") as base:
            print(json.dumps(replay(name, states, seed, twice, without_syncs, Path(base)), indent=1), flush=True)


if __name__ == "__main__":
    main()
