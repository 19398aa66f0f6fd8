"""The champion moves forward and back by compare-and-set, in Baton's own store."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient

from baton.infra.paths import baton_home
from baton.infra.process.process_id import this_process
from baton.infra.tracking.set_aside import OUTCOME_TAG
from baton.infra.tracking.store import tracking_uri
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import ArtifactError, verify, write_manifest
from baton.tasks.models.named import name_model
from baton.tasks.promote.ledger import ROLLED_BACK, generations
from baton.tasks.publish import champion
from baton.tasks.publish.aliases import (
    CHAMPION,
    PREVIOUS,
    Version,
    is_open,
    terms,
    version_at,
    versions,
)
from baton.tasks.publish.champion import (
    CLAIM,
    ChampionChanged,
    ChampionClaimed,
    NoSuchVersion,
    make_champion,
    promote,
    roll_back,
)
from baton.tasks.publish.registry import Publication, register
from baton.tasks.serve import fetched as fetched_files
from baton.tasks.serve.fetched import fetch, remove_fetched
from baton.workflows.rollback import main as rollback

NAME = "baton-test"


def make(root: Path, count: int, name: str = NAME, of: str | None = None) -> None:
    """Register this many versions with the files of the model `of`."""
    for number in range(1, count + 1):
        directory = root / f"published {number}"
        directory.mkdir(parents=True)
        (directory / "model.safetensors").write_text(f"{of or name} {number}")
        (directory / "empty.txt").touch()  # MLflow's server does not report its size
        digest = write_manifest(directory, "published_model", {}).digest
        tags = {"baton.model": f"model-{number}", "baton.label": "base"}
        register(Publication(name, None, directory, digest, "", tags), lambda waited: None)


@pytest.fixture
def three(home: Path, tmp_path: Path) -> None:
    make(tmp_path, 3)


def standing() -> list[int | None]:
    """Return the versions that are champion and previous."""
    at = [version_at(NAME, alias) for alias in (CHAMPION, PREVIOUS)]
    return [found.version if found else None for found in at]


def set_aside() -> list[int]:
    return [each.version for each in generations(NAME) if each.outcome == ROLLED_BACK]


def decide(*outcomes: str) -> None:
    """Set the outcomes of the first versions, each trained from the previous one."""
    for number, outcome in enumerate(outcomes, 1):
        MlflowClient(tracking_uri()).set_model_version_tag(NAME, str(number), OUTCOME_TAG, outcome)


def reasons(version: int) -> list[str | None]:
    """Return the reason for the end of each term as champion, or None for a term that has not ended."""
    (found,) = [each for each in versions(NAME) if each.version == version]
    return [term["why"] for term in terms(found)]


def test_nothing_is_registered_at_first(home: Path) -> None:
    assert versions(NAME) == [] and version_at(NAME, CHAMPION) is None


def test_versions_come_oldest_first_with_their_digests(three: None) -> None:
    assert [(each.version, each.digest) for each in versions(NAME)] == [(n, f"model-{n}") for n in (1, 2, 3)]
    assert version_at(NAME, CHAMPION) is None


def test_a_promotion_moves_both_aliases_and_is_remembered(three: None) -> None:
    promote(NAME, 1, None)
    assert standing() == [1, None]
    promote(NAME, 3, 1)
    assert standing() == [3, 1]
    assert (reasons(1), reasons(2), reasons(3)) == (["version 3 was promoted"], [], [None])


def test_a_promotion_may_be_repeated(three: None) -> None:
    promote(NAME, 1, None)
    promote(NAME, 2, 1)
    promote(NAME, 2, 1)
    assert standing() == [2, 1]
    assert (reasons(1), reasons(2)) == (["version 2 was promoted"], [None])


def test_a_promotion_that_was_cut_off_is_completed(three: None) -> None:
    promote(NAME, 1, None)
    client = MlflowClient(tracking_uri())
    client.set_registered_model_alias(NAME, PREVIOUS, "1")  # the state after a kill between the two steps
    client.set_registered_model_alias(NAME, CHAMPION, "2")
    promote(NAME, 2, 1)
    assert standing() == [2, 1]
    assert (reasons(1), reasons(2)) == (["version 2 was promoted"], [None])


def test_a_champion_that_is_not_the_expected_one_stays(three: None) -> None:
    promote(NAME, 1, None)
    promote(NAME, 2, 1)
    with pytest.raises(ChampionChanged, match="is version 2, not version 1, which version 3 was compared with"):
        promote(NAME, 3, 1)
    with pytest.raises(ChampionChanged, match="not none"):
        promote(NAME, 3, None)
    assert standing() == [2, 1]


def test_of_two_promotions_at_once_one_is_done(three: None) -> None:
    promote(NAME, 1, None)
    command = [sys.executable, "-m", "tests.publish.moving", NAME]
    movers = [subprocess.Popen([*command, version, "1"], stderr=subprocess.PIPE, text=True) for version in "23"]
    errors = [mover.communicate()[1] for mover in movers]
    (winner,) = [number for number, mover in zip((2, 3), movers, strict=True) if mover.returncode == 0]
    assert standing() == [winner, 1]
    assert sorted("ChampionChanged" in error for error in errors) == [False, True]
    assert not claims()


@pytest.mark.long
def test_two_who_move_without_pause_never_cross(three: None) -> None:
    """Each move is made by one mover alone, so as many terms of one version end as terms of the other begin."""
    promote(NAME, 1, None)
    promote(NAME, 2, 1)
    program = f"from baton.tasks.publish.champion import roll_back\nfor _ in range(6): roll_back({NAME!r})"
    movers = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [mover.wait() for mover in movers] == [0, 0]
    assert sorted(each or 0 for each in standing()) == [1, 2]
    spans = sorted((term["since"], term["until"] or "9") for each in versions(NAME) for term in terms(each))
    assert all(until <= since for (_, until), (since, _) in itertools.pairwise(spans))
    assert sum(until == "9" for _, until in spans) == 1
    assert not claims()


def claims() -> list[str]:
    return [tag for tag in MlflowClient(tracking_uri()).get_registered_model(NAME).tags if tag.startswith(CLAIM)]


def promote_and_stop(function: str, elsewhere: bool, hold_s: float, said: Connection) -> None:
    """Promote version 2, but stop this process at its first call of a function, until SIGCONT."""
    owner, _, name = function.rpartition(".")
    of = getattr(champion, owner, champion)
    own = getattr(of, name)

    def stop(*arguments: Any) -> Any:
        setattr(of, name, own)
        os.kill(os.getpid(), signal.SIGSTOP)
        return own(*arguments)

    setattr(of, name, stop)
    champion.HOLD_S = hold_s
    if elsewhere:
        vars(champion)["this_process"] = lambda: "17 another-machine its-boot/its-pids 18"
    try:
        promote(NAME, 2, 1)
        said.send("promoted")
    except StageError as error:
        said.send(str(error))


@contextmanager
def stopped(function: str, elsewhere: bool = False, hold_s: float = 30) -> Iterator[tuple[int, Connection]]:
    """Run promote_and_stop in a process that has stopped; yields its pid and the connection on which it reports its
    end."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    mover = context.Process(target=promote_and_stop, args=(function, elsewhere, hold_s, there))
    mover.start()
    assert mover.pid
    try:
        os.waitid(os.P_PID, mover.pid, os.WSTOPPED)
        yield mover.pid, here
    finally:
        mover.kill()
        mover.join()


def test_a_mover_that_is_suspended_is_waited_for(three: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the mover continues, it is the only one that moves the champion."""
    monkeypatch.setattr(champion, "CLAIM_S", 0.5)
    monkeypatch.setattr(champion, "WAIT_S", 2.0)
    promote(NAME, 1, None)
    with stopped("MlflowClient.set_registered_model_alias") as (mover, said):
        before = standing()
        with pytest.raises(ChampionClaimed, match=rf"moved by process {mover} of .* for 2 s"):
            promote(NAME, 3, 1)
        assert standing() == before
        os.kill(mover, signal.SIGCONT)
        assert said.recv() == "promoted"
    assert standing() == [2, 1]
    assert not claims()


def test_a_mover_of_another_machine_finds_that_its_claim_has_expired(
    three: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(champion, "CLAIM_S", 1.0)
    promote(NAME, 1, None)
    with stopped("number_at", elsewhere=True, hold_s=0.5) as (mover, said):
        promote(NAME, 3, 1)
        os.kill(mover, signal.SIGCONT)
        assert "the champion of baton-test is version 3, not version 1" in said.recv()
    assert (standing(), claims()) == ([3, 1], [])
    assert (reasons(1), reasons(2), reasons(3)) == (["version 3 was promoted"], [], [None])


def test_the_claim_of_a_mover_that_was_killed_is_removed_at_once(three: None) -> None:
    promote(NAME, 1, None)
    with stopped("MlflowClient.set_registered_model_alias"):
        pass
    assert len(claims()) == 1
    began = time.monotonic()
    promote(NAME, 3, 1)
    assert time.monotonic() - began < champion.MESSAGE_AFTER_S
    assert (standing(), claims()) == ([3, 1], [])


def test_a_claim_that_this_process_has_left_is_removed_at_once(three: None) -> None:
    """The registry was unreachable when the claim should have been removed."""
    MlflowClient(tracking_uri()).set_registered_model_tag(NAME, f"{CLAIM}left", this_process())
    promote(NAME, 1, None)
    assert (standing(), claims()) == ([1, None], [])


def test_the_claim_of_a_mover_that_died_elsewhere_is_waited_out(three: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(champion, "CLAIM_S", 1.0)
    MlflowClient(tracking_uri()).set_registered_model_tag(NAME, f"{CLAIM}dead", "1")
    began = time.monotonic()
    promote(NAME, 1, None)
    assert time.monotonic() - began > 1.0
    assert not claims()


def test_a_rollback_turns_back_and_the_next_one_undoes_it(three: None) -> None:
    promote(NAME, 1, None)
    promote(NAME, 2, 1)
    decide("promoted", "promoted", "kept")
    was, now = roll_back(NAME)
    assert (was.version, now.version, *standing()) == (2, 1, 1, 2)
    assert set_aside() == [2, 3]
    roll_back(NAME)
    assert (*standing(), set_aside()) == (2, 1, [])
    assert reasons(2) == ["rolled back to version 1", None]


def test_a_rollback_goes_to_any_earlier_champion(three: None) -> None:
    for version, before in ((1, None), (2, 1), (3, 2)):
        promote(NAME, version, before)
    decide("promoted", "promoted", "promoted")
    roll_back(NAME, to=1)
    assert (*standing(), set_aside()) == (1, 3, [2, 3])
    roll_back(NAME, to=2)  # version 2 does not descend from 3
    assert (*standing(), set_aside()) == (2, 1, [3])


def test_what_is_promoted_after_a_rollback_is_not_set_aside(three: None, tmp_path: Path) -> None:
    promote(NAME, 1, None)
    promote(NAME, 2, 1)
    roll_back(NAME)
    make(tmp_path / "more", 1, NAME + "-other")
    promote(NAME, 3, 1)
    assert standing() == [3, 1]


def test_there_must_be_a_version_to_turn_to(three: None) -> None:
    with pytest.raises(NoSuchVersion, match="no such model in the registry; there are: baton-test"):
        roll_back("baton-tset")
    with pytest.raises(NoSuchVersion, match="no version is champion"):
        roll_back(NAME)
    promote(NAME, 1, None)
    with pytest.raises(NoSuchVersion, match="there is none to roll back to"):
        roll_back(NAME)
    promote(NAME, 2, 1)
    for to in (2, 3, 9):
        with pytest.raises(NoSuchVersion, match=rf"version {to}: not an earlier champion; those are: 1 \(champion: 2"):
            roll_back(NAME, to=to)
    assert standing() == [2, 1]


def test_a_champion_that_publish_or_a_person_made_can_be_turned_back_to(three: None) -> None:
    MlflowClient(tracking_uri()).set_registered_model_alias(NAME, CHAMPION, "1")
    promote(NAME, 2, 1)
    roll_back(NAME)
    assert standing() == [1, 2]


def test_a_version_that_is_published_as_champion_can_be_turned_back_from(three: None) -> None:
    make_champion(NAME, 1)
    make_champion(NAME, 2)
    make_champion(NAME, 2)  # a retry
    assert (standing(), reasons(1), claims()) == ([2, 1], ["version 2 was published as champion"], [])
    roll_back(NAME)
    assert standing() == [1, 2]


def test_a_rollback_goes_to_the_version_that_a_person_s_alias_replaced(three: None) -> None:
    """MLflow's user interface moves only `champion`: `previous` and the terms are those of the last promotion."""
    promote(NAME, 1, None)
    promote(NAME, 2, 1)
    MlflowClient(tracking_uri()).set_registered_model_alias(NAME, CHAMPION, "3")
    shown = CliRunner().invoke(rollback, [NAME, "--show"]).output.splitlines()
    assert ["version 2" in shown[1], shown[1].endswith("unknown")] == [True, True]
    assert ["version 3" in shown[2], shown[2].endswith("now")] == [True, True]
    roll_back(NAME)
    assert standing() == [2, 3]
    promote(NAME, 1, 2)
    assert [each.version for each in versions(NAME) if is_open(each)] == [1]


def test_after_a_person_s_alias_no_term_stays_open(three: None) -> None:
    promote(NAME, 1, None)
    MlflowClient(tracking_uri()).set_registered_model_alias(NAME, CHAMPION, "2")
    promote(NAME, 3, 2)
    assert (standing(), reasons(1), reasons(2)) == ([3, 2], ["replaced by version 2"], ["version 3 was promoted"])


def test_the_files_are_those_that_were_published(three: None, tmp_path: Path) -> None:
    promote(NAME, 2, None)
    found = version_at(NAME, CHAMPION)
    assert found and fetch(found) == tmp_path / "published 2"
    (tmp_path / "published 2" / "model.safetensors").write_text("baton-test X")
    with pytest.raises(ArtifactError, match="was changed"):
        fetch(found)


def fetched(count: int, monkeypatch: pytest.MonkeyPatch) -> list[Version]:
    """Download this many versions of one model."""

    def download(version: Version, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        (place / "weights").write_text(version.digest)

    monkeypatch.setattr(fetched_files, "_download", download)
    made = []
    for number in range(1, count + 1):
        download(Version(NAME, number, f"model-{number}", "", "", {}), place := baton_home() / f"version-{number}")
        content = write_manifest(place, "published_model", {}).digest
        made.append(Version(NAME, number, f"model-{number}", content, f"models:/{number}", {}))
        fetch(made[-1])
    return made


def test_fetched_models_are_removed_but_those_that_are_needed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = fetched(3, monkeypatch)
    assert sorted(remove_fetched(NAME, but={two.content})) == [one.digest, three.digest]
    assert [place.name for place in (home / "models").iterdir()] == [two.content]
    assert remove_fetched("another model", but=set()) == []
    assert verify(fetch(one)).digest == one.content  # downloads it again


def test_a_published_model_with_a_link_by_name_is_no_fetched_one(home: Path, tmp_path: Path) -> None:
    (published := tmp_path / "published").mkdir()
    (published / "weights").touch()
    write_manifest(published, "published_model", {"registry_name": NAME})
    name_model(NAME, published)
    assert remove_fetched(NAME, but=set()) == []
    assert verify(home / "models" / NAME) and verify(published)


def test_a_fetched_model_that_another_process_uses_is_not_removed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = fetched(1, monkeypatch)
    program = f"from baton.tasks.serve.fetched import remove_fetched; print(remove_fetched({NAME!r}, but=set()))"
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
    assert verify(fetch(one)).digest == one.content
