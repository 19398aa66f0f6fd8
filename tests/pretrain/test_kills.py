"""`make survive`: many kills, with and without torchrun; prints the phases that were hit."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pretrain.killing import LAYOUTS, Kills, Run, kill_again_and_again, killable, outcome, undisturbed
from tests.pretrain.ranks import engine, load_libraries
from tests.pretrain.tiny import make_shards, pretrain_job, start
from tests.processes import kill_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Torchrun:
    """The engine as baton.infra.process.launch starts it."""

    def __init__(self, job: Path) -> None:
        self.job, self.process = job, start(job)

    def succeed(self) -> None:
        assert self.process.wait(timeout=300) == 0, (self.job / "log.txt").read_text()[-3000:]

    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        if self.alive():
            kill_tree(self.process.pid)
            self.process.wait()


# (starter, steps, kills) of each run
STARTS: dict[str, tuple[Callable[[Path], Run], int, int]] = {
    "torchrun": (Torchrun, 60, 5),
    "forked ranks": (engine, 40, 30),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    load_libraries(tmp_path_factory.mktemp("first"))
    return make_shards(tmp_path_factory.mktemp("data") / "shards")


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("how", STARTS)
def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(
    how: str, name: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start_run, steps, count = STARTS[how]
    spec = killable(LAYOUTS[name], steps)
    reference = pretrain_job(tmp_path / "undisturbed", data, spec)
    seconds = undisturbed(start_run, reference)
    kills = Kills(count)
    jobs = kill_again_and_again(start_run, tmp_path, data, spec, seconds, kills, seed=f"{how} {name}")
    assert [outcome(job) for job in jobs] == [outcome(reference)] * len(jobs)
    with capsys.disabled():
        hits = ", ".join(f"{hit} in {place}" for place, hit in kills.found.most_common())
        print(f"\n{name}, {how}: {count} kills in {len(jobs)} runs, all bit-identical; {hits}")
