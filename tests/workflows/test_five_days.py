"""Five days of continuous training, run by the schedule with a simulated clock.

    Mon  the first text; the result is the first champion
    Tue  new text, an edited file and a deleted file; two runs start at the same time
    Wed  corrupted text; the candidate is worse, and its text is set aside
    Thu  no new text
    Fri  new text; the run is killed during training and restarted

Every process, engine and store is real.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from baton.infra.drawing.graph import Artifact
from baton.infra.lineage.api import Lineage
from baton.tasks.core.manifest import read_manifest
from baton.tasks.promote.ledger import Generation, generations
from baton.tasks.publish.aliases import CHAMPION, PREVIOUS, terms, version_at, versions
from baton.workflows.schedule import LAUNCH_PLANS, Plan, run_forever, run_plan
from tests.data.by_hand import names_in
from tests.processes import commands, kill_tree
from tests.workflows.test_pretrain_to_rl import TINY

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("vllm")]

NAME = "five-days"
NIGHTLY = Plan("nightly", "0 2 * * *", retries=2)
LIBRARY = Path(os.__file__).parent
MODULES = sorted(path.stem for path in LIBRARY.glob("*.py") if 2_000 < path.stat().st_size < 25_000)
FIRST, SECOND, LAST = MODULES[:40], MODULES[40:60], MODULES[60:80]
EDITED, DELETED = FIRST[:2]
RECIPE: dict[str, Any] = {
    "name": NAME,
    "corpus": {"source": {"kind": "files", "path": "incoming"}, "held_out": 0.3},
    "tokenizer": {"vocab_size": 512},
    "shards": {},
    "pretrain": {
        "model": TINY["pretrain"]["model"],
        "sequence_length": 64,
        "global_batch": 16,
        "layout": {"micro_batch": 16},
        "steps": 120,
        "optimizer": {"lr": 5e-3, "warmup_steps": 5},
        "checkpoints": {"every": 20},
    },
    "convert": {},
    "audit": None,
    "evaluate": {"bits_per_byte": {"held_out_bytes": 100_000}},
    "grow": {"replay": 0.2, "lr": 5e-3, "min_lr": 3e-4, "max_steps": 120, "min_steps": 60, "compact": 2},
    "promotion": {"regressions": {"old.bits_per_byte": 0.005}},
    "publish": {"name": NAME},
    "schedule": {"retries": NIGHTLY.retries},
}  # fmt: skip
# settings of these days, which other tests of continuous training use too
TWO_SOURCES: dict[str, Any] = {
    "sources": {
        "code": {"kind": "files", "path": "incoming", "weight": 0.9},
        "notes": {"kind": "files", "path": "notes", "weight": 0.1},
    },
    "curate": [{"function": "filters.py:keep"}, {"near_duplicates": {}}],
    "partitions": {"size_mb": 0.1},
    "held_out": 0.3,
}


@dataclass
class World:
    """The folder where text arrives, the clock, and the output of the days."""

    folder: Path
    moment: datetime = datetime(2026, 11, 22, 20, tzinfo=UTC)  # Sunday evening
    codes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    second_start: str = ""
    killed_at: int = 0

    @property
    def incoming(self) -> Path:
        return self.folder / "incoming"

    def arrive(self, *names: str) -> None:
        for name in names:
            (self.incoming / f"{name}.py").write_text((LIBRARY / f"{name}.py").read_text())

    def note(self, *numbers: int) -> None:
        for number in numbers:
            (self.folder / "notes" / f"{number}.txt").write_text(f"Note {number}. " + f"It has line {number}.\n" * 40)


def monday(world: World) -> None:
    world.arrive(*FIRST)
    world.note(*range(20))


def tuesday(world: World) -> None:
    world.arrive(*SECOND)
    (world.incoming / "nearly_the_same.py").write_text(
        (LIBRARY / f"{FIRST[3]}.py").read_text() + "\n# nearly the same\n"
    )
    (world.incoming / "unwanted.py").write_text("# unwanted\n" * 100)
    edited = world.incoming / f"{EDITED}.py"
    edited.write_text(f"{edited.read_text()}\n# edited\n")
    (world.incoming / f"{DELETED}.py").unlink()
    _in_background(lambda: _start_a_second_run(world))


def wednesday(world: World) -> None:
    for name in FIRST:  # reversed lines have the same tokens, and training on them does not help
        lines = (LIBRARY / f"{name}.py").read_text().splitlines()
        (world.incoming / f"corrupted-{name}.txt").write_text("\n".join(line[::-1] for line in lines))


def thursday(world: World) -> None:
    """No text arrives."""


def friday(world: World) -> None:
    world.arrive(*LAST)
    _in_background(lambda: _kill_in_mid_training(world))


DAYS: tuple[Callable[[World], None], ...] = (monday, tuesday, wednesday, thursday, friday)


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("week")
    world = World(folder)
    world.incoming.mkdir()
    (folder / "notes").mkdir()
    (folder / "filters.py").write_text(
        "def keep(document):\n    return '# unwanted' not in document.text or 'unwanted'\n"
    )
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | {"corpus": TWO_SOURCES}))
    set_here = pytest.MonkeyPatch()  # the environment of a person's shell: the home, the recipe, the folder
    set_here.chdir(folder)
    set_here.setenv("BATON_HOME", str(folder / "baton"))
    set_here.setenv("BATON_CONTINUOUS", str(folder / "recipe.yaml"))
    set_here.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    days = iter(DAYS)

    def start(plan: Plan) -> None:
        day = next(days, None)
        if day is None:
            raise KeyboardInterrupt  # the end of the week
        day(world)
        began = time.monotonic()
        world.codes.append(run_plan(plan, sleep))
        world.seconds.append(time.monotonic() - began)

    def sleep(seconds: float) -> None:
        world.moment += timedelta(seconds=seconds)

    with pytest.raises(KeyboardInterrupt):
        run_forever([NIGHTLY], start, now=lambda: world.moment, sleep=sleep)
    yield world
    set_here.undo()


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()


def _start_a_second_run(world: World) -> None:
    """Start a second run while the first one is tokenizing or later."""
    before = set(_jobs(world, "shards"))
    _wait_until(lambda: set(_jobs(world, "shards")) - before)
    command = [str(Path(sys.executable).with_name("pyflyte")), "run", str(LAUNCH_PLANS), NIGHTLY.name]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    world.second_start = done.stderr + done.stdout


def _kill_in_mid_training(world: World) -> None:
    """Kill the run and its children with kill -9 once it has a checkpoint."""
    before = set(_jobs(world, "pretrain"))

    def step() -> int:
        for job in set(_jobs(world, "pretrain")) - before:
            checkpoints = sorted((job / "work/checkpoints").glob("step-*/manifest.json"))
            return int(checkpoints[-1].parent.name.removeprefix("step-")) if checkpoints else 0
        return 0

    _wait_until(lambda: step() >= 20)
    world.killed_at = step()
    for child, command in commands(psutil.Process().children()).items():
        if "pyflyte" in " ".join(command):
            kill_tree(child.pid)


def _jobs(world: World, stage: str) -> list[Path]:
    return list((world.folder / "baton/jobs").glob(f"{stage}-*"))


def _wait_until(ready: Callable[[], Any], patience_s: float = 300) -> None:
    ends = time.monotonic() + patience_s
    while not ready():
        assert time.monotonic() < ends, "the condition was not met in time"
        time.sleep(0.05)


def by_number() -> dict[int, Generation]:
    return {each.number: each for each in generations(NAME)}


def test_every_day_ends_well(week: World) -> None:
    assert week.codes == [0] * 5


def test_the_registry_tells_the_week(week: World) -> None:
    assert [each.version for each in versions(NAME)] == [1, 2, 3, 4]
    assert [each.outcome for each in generations(NAME)] == ["promoted", "promoted", "rejected", "promoted"]
    champion, previous = version_at(NAME, CHAMPION), version_at(NAME, PREVIOUS)
    assert champion and previous
    assert (champion.version, previous.version) == (4, 2)
    assert [len(terms(each)) for each in versions(NAME)] == [1, 1, 0, 1]


def test_the_overlapping_start_waits_and_finds_nothing_to_do(week: World) -> None:
    assert "waiting" in week.second_start
    assert "nothing to do" in week.second_start


def test_the_empty_day_ends_in_seconds(week: World) -> None:
    assert week.seconds[3] < 60  # seconds on two busy cores, mostly for imports


def test_no_document_is_trained_on_twice(week: World) -> None:
    made = [Path(each.part("corpus").place) for each in generations(NAME)]
    new = [document for corpus in made for document, _ in names_in(corpus)]
    assert len(new) == len(set(new))


def test_what_a_day_dropped_is_counted(week: World) -> None:
    facts = read_manifest(Path(by_number()[2].part("corpus").place)).facts
    assert {step: count["dropped"] for step, count in facts["curation"].items()} == {
        "function": 1,
        "near_duplicates": 1,
    }
    assert facts["sources"]["notes"]["documents"] == 0


def test_the_edited_and_the_deleted_file_are_reported(week: World) -> None:
    changes = _changes(by_number()[2])
    assert [each["source"] for each in changes["edited"]] == [f"code/{EDITED}.py"]
    assert [each["source"] for each in changes["deleted"]] == [f"code/{DELETED}.py"]


def test_an_increment_names_the_newest_known_corpus_alone(week: World) -> None:
    parents = read_manifest(Path(by_number()[4].part("corpus").place)).parents
    assert {name: digest for name, digest in parents.items() if name.startswith("known.")} == {
        "known.2": _digest(3, "corpus")
    }


def test_the_killed_run_continued_from_its_checkpoint(week: World) -> None:
    (job,) = [
        job for job in _jobs(week, "pretrain") if read_manifest(job / "output").digest == _digest(4, "checkpoint")
    ]
    assert week.killed_at >= 20
    assert "continuing from step" in (job / "log.txt").read_text()


def test_the_day_after_the_bad_one_goes_on_from_the_good_one(week: World) -> None:
    (job,) = [
        job for job in _jobs(week, "pretrain") if read_manifest(job / "output").digest == _digest(4, "checkpoint")
    ]
    parents = read_manifest(job / "output").parents
    assert parents["resume.0"] == _digest(2, "checkpoint")
    assert _digest(3, "shards") not in parents.values()


def test_the_text_of_two_generations_is_one_data_set(week: World) -> None:
    (training,) = [
        job for job in _jobs(week, "pretrain") if read_manifest(job / "output").digest == _digest(4, "checkpoint")
    ]
    parents = read_manifest(training / "output").parents
    made = {each.digest: each for each in (read_manifest(job / "output") for job in _jobs(week, "compact"))}[
        parents["data"]
    ]
    assert [name for name in parents if name.startswith("more")] == ["more.0"]
    assert [made.parents[f"data.{number}"] for number in (0, 1)] == [_digest(number, "shards") for number in (1, 2)]
    assert made.parents["corpora.0"] == _digest(1, "corpus")  # some text of this corpus was deleted


def test_every_model_s_lineage_is_whole(week: World) -> None:
    lineage = Lineage()
    for number, of in {1: {1}, 2: {1, 2}, 3: {1, 2, 3}, 4: {1, 2, 4}}.items():
        ancestors = {each.digest for each in lineage.ancestors(_digest(number, "model")) if isinstance(each, Artifact)}
        for part in ("corpus", "shards", "checkpoint"):
            assert ancestors >= {_digest(each, part) for each in of}, (number, part)
        assert _digest(1, "tokenizer") in ancestors


def test_the_rejected_text_is_in_no_later_model(week: World) -> None:
    ancestors = Lineage().ancestors(_digest(4, "model"))
    assert _digest(3, "shards") not in {each.digest for each in ancestors if isinstance(each, Artifact)}


def _digest(number: int, part: str) -> str:
    return by_number()[number].part(part).digest


def _changes(generation: Generation) -> Any:
    return json.loads((Path(generation.part("corpus").place) / "changes.json").read_text())
