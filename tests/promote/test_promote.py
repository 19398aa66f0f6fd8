"""A decision applied to the registry, and the registry read as the ledger."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from baton.infra.lineage.database import open_database
from baton.infra.lineage.graph import Graph
from baton.infra.lineage.registry import registered
from baton.infra.tracking.set_aside import OUTCOME_TAG, PARENT_TAG
from baton.infra.tracking.store import tracking_uri
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import read_manifest
from baton.tasks.data.artifact import Corpus
from baton.tasks.models.artifact import HFModel
from baton.tasks.promote.artifact import Promotion
from baton.tasks.promote.ledger import LedgerError, NoChampion, champion, generations, load
from baton.tasks.publish.aliases import CHAMPION, PREVIOUS, version_at, versions
from baton.tasks.publish.champion import ChampionChanged, make_champion, promote, roll_back
from tests.promote.made import (
    NAME,
    NEW,
    OLD,
    corpus,
    day,
    decided,
    job_dir,
    model,
    promoted,
    published,
    read,
    report,
)


def standing() -> list[int | None]:
    at = [version_at(NAME, alias) for alias in (CHAMPION, PREVIOUS)]
    return [found.version if found else None for found in at]


def outcomes() -> list[str]:
    return [each.outcome for each in generations(NAME)]


def accepted() -> list[int]:
    return [each.version for each in generations(NAME) if each.accepted]


def on_the_models_page() -> dict[int, tuple[str, str]]:
    """Return each version's outcome and its reason."""
    engine = open_database()
    with engine.connect() as connection:
        (shown,) = registered(Graph(engine).refresh(), connection)
    return {each["version"]: (each["outcome"], each["reason"]) for each in shown["versions"]}


def test_days_of_every_kind_leave_their_history(home: Path, tmp_path: Path) -> None:
    assert day(tmp_path, "one", None) == "promoted"
    assert day(tmp_path, "two", "one", old=1.9, new=1.9) == "promoted"
    assert day(tmp_path, "three", "two", old=2.2, new=0.5) == "rejected"
    assert day(tmp_path, "four", "two", old=2.0, new=1.9) == "kept"
    assert day(tmp_path, "five", "two", old=1.8, new=1.8) == "promoted"
    assert standing() == [5, 2]
    found = generations(NAME)
    assert [(each.number, each.version) for each in found] == [(n, n) for n in range(1, 6)]
    assert outcomes() == ["promoted", "promoted", "rejected", "kept", "promoted"]
    assert [each.version for each in found if each.accepted] == [1, 2, 4, 5]
    for each, name in zip(found, ("one", "two", "three", "four", "five"), strict=True):
        assert load(each.part("corpus")).digest == read_manifest(tmp_path / f"corpus-{name}").digest
        assert load(each.part("model")).digest == read_manifest(tmp_path / name).digest
    tags = versions(NAME)[2].tags
    assert tags["baton.decision"] == read_manifest(tmp_path / "decide-three" / "output").digest
    assert tags["baton.decision.words"].startswith("Rejected: ")
    assert tags["baton.decision.new.bits_per_byte"].startswith("+0.7")


def test_a_day_of_random_letters_is_set_aside_though_replay_made_the_model_better(home: Path, tmp_path: Path) -> None:
    day(tmp_path, "one", None)
    assert day(tmp_path, "letters", "one", old=1.9, new=5.0, far=6.0) == "rejected"
    assert day(tmp_path, "two", "one", old=1.9, new=2.5, far=3.0) == "promoted"
    assert (standing(), outcomes()) == ([3, 1], ["promoted", "rejected", "promoted"])
    # text of an accepted generation is old the next day
    assert [each.version for each in generations(NAME) if each.accepted] == [1, 3]
    words = versions(NAME)[1].tags["baton.decision.words"]
    assert re.match(r"Rejected: the champion needs [23]\.\d times as many bits per byte for the new text as for", words)
    assert "(allowed: 2 times), so the new text is set aside" in words


def test_a_model_without_a_decision_that_was_rolled_back_is_shown_as_such(home: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        published(tmp_path / f"publish-{name}", model(tmp_path / name))
    promote(NAME, 1, None)
    promote(NAME, 2, 1)
    assert [on_the_models_page()[number][0] for number in (1, 2)] == [None, None]
    roll_back(NAME)
    assert [on_the_models_page()[number][0] for number in (1, 2)] == [None, "rolled back"]


def test_what_was_rolled_back_is_not_gone_on_from(home: Path, tmp_path: Path) -> None:
    day(tmp_path, "one", None)
    day(tmp_path, "two", "one", old=1.9, new=1.9)
    day(tmp_path, "three", "two")
    assert [each.version for each in generations(NAME) if each.accepted] == [1, 2, 3]
    roll_back(NAME)
    assert outcomes() == ["promoted", "rolled_back", "rolled_back"]
    assert [each.version for each in generations(NAME) if each.accepted] == [1]
    day(tmp_path, "four", "one", old=1.9, new=1.9)
    assert (standing(), outcomes()[-1]) == ([4, 1], "promoted")


@pytest.mark.long
@pytest.mark.parametrize(("old", "new"), [(1.9, 1.9), (2.0, 2.0), (2.2, 2.0)])
def test_a_night_during_which_the_champion_was_rolled_back_does_not_count(
    home: Path, tmp_path: Path, old: float, new: float
) -> None:
    """The candidate is better than the restored champion, equal or worse; it was trained from a version that is now
    set aside."""
    day(tmp_path, "one", None)
    day(tmp_path, "two", "one", "one", old=1.9, new=1.9)
    roll_back(NAME)  # while `three` is trained from `two`
    with pytest.raises(ChampionChanged, match=r"and training continues from version 1 since .* run the same command"):
        day(tmp_path, "three", "one", "two", old=old, new=new)
    assert (standing(), outcomes()) == ([1, 2], ["promoted", "rolled_back"])
    shown = on_the_models_page()
    assert {number: words for number, (words, _) in shown.items()} == {1: "promoted", 2: "rolled back", 3: "refused"}
    assert "was trained from the checkpoint" in shown[3][1]
    day(tmp_path, "again", "one", "one")
    assert accepted() == [1, 4]


def test_a_night_that_a_roll_back_crosses_at_its_last_tag_is_set_aside(home: Path, tmp_path: Path) -> None:
    day(tmp_path, "one", None)
    day(tmp_path, "two", "one", "one", old=1.9, new=1.9)
    day(tmp_path, "three", "two", "two")
    client = MlflowClient(tracking_uri())
    client.delete_model_version_tag(NAME, "3", OUTCOME_TAG)
    roll_back(NAME)
    client.set_model_version_tag(NAME, "3", OUTCOME_TAG, "kept")
    assert outcomes() == ["promoted", "rolled_back", "rolled_back"]


def three_champions(folder: Path) -> None:
    day(folder, "one", None)
    day(folder, "two", "one", "one", old=1.9, new=1.9)
    day(folder, "three", "two", "two", old=1.9, new=1.9)


@pytest.mark.long
def test_what_was_kept_after_a_roll_back_is_set_aside_when_that_is_undone(home: Path, tmp_path: Path) -> None:
    three_champions(tmp_path)
    roll_back(NAME, 1)
    day(tmp_path, "four", "one", "one")
    assert (outcomes()[-1], accepted()) == ("kept", [1, 4])
    roll_back(NAME)  # goes back to version 3, from which 4 does not descend
    assert (standing(), accepted()) == ([3, 1], [1, 2, 3])
    roll_back(NAME)
    assert (standing(), accepted()) == ([1, 3], [1, 4])


@pytest.mark.long
def test_a_roll_back_and_its_undo_leave_what_was_set_aside_earlier(home: Path, tmp_path: Path) -> None:
    three_champions(tmp_path)
    roll_back(NAME, 1)
    day(tmp_path, "four", "one", "one", old=1.9, new=1.9)
    assert (standing(), accepted()) == ([4, 1], [1, 4])
    roll_back(NAME, 3)
    assert accepted() == [1, 2, 3]
    roll_back(NAME)
    assert (standing(), accepted()) == ([4, 3], [1, 4])


def test_training_continues_from_the_last_champion_of_its_own_when_another_model_is_made_champion(
    home: Path, tmp_path: Path
) -> None:
    three_champions(tmp_path)
    roll_back(NAME, 1)
    published(tmp_path / "publish", model(tmp_path / "by hand"))
    make_champion(NAME, 4)
    assert (standing(), accepted()) == ([4, 1], [1])


def test_an_older_ledger_is_read_by_what_its_checkpoints_continued_from(home: Path, tmp_path: Path) -> None:
    day(tmp_path, "one", None)
    day(tmp_path, "two", "one", "one", old=1.9, new=1.9)
    roll_back(NAME)
    day(tmp_path, "three", "one", "one", old=1.9, new=1.9)
    for version in "123":
        MlflowClient(tracking_uri()).delete_model_version_tag(NAME, version, PARENT_TAG)
    assert outcomes() == ["promoted", "rolled_back", "promoted"]


def test_a_champion_whose_alias_was_deleted_is_missed_and_restored(home: Path, tmp_path: Path) -> None:
    assert champion(NAME) is None
    day(tmp_path, "one", None)
    day(tmp_path, "two", "one", old=1.9, new=1.9)
    day(tmp_path, "three", "two")
    MlflowClient(tracking_uri()).delete_registered_model_alias(NAME, CHAMPION)
    with pytest.raises(NoChampion, match=r"although versions 1, 2 were promoted.*baton rollback baton-test --to 2"):
        champion(NAME)
    roll_back(NAME, 2)
    assert standing() == [2, 1]
    assert outcomes() == ["promoted", "promoted", "kept"]


def test_without_its_alias_the_champion_may_be_rolled_back_too(home: Path, tmp_path: Path) -> None:
    day(tmp_path, "one", None)
    day(tmp_path, "two", "one", old=1.9, new=1.9)
    MlflowClient(tracking_uri()).delete_registered_model_alias(NAME, CHAMPION)
    roll_back(NAME, 1)
    assert standing() == [1, 2]
    assert outcomes() == ["promoted", "rolled_back"]


def test_a_version_counts_from_its_outcome_on(home: Path, tmp_path: Path) -> None:
    published(tmp_path / "publish", model(tmp_path / "model"))
    assert len(versions(NAME)) == 1
    assert generations(NAME) == [] and champion(NAME) is None


def test_a_promotion_cut_off_before_its_last_tag_is_repeated_to_the_same_end(home: Path, tmp_path: Path) -> None:
    day(tmp_path, "one", None)
    day(tmp_path, "two", "one", old=1.9, new=1.9)
    before = (standing(), [each.tags for each in versions(NAME)])
    MlflowClient(tracking_uri()).delete_model_version_tag(NAME, "2", OUTCOME_TAG)
    assert outcomes() == ["promoted"]
    promoted(tmp_path / "again", tmp_path / "decide-two" / "output", tmp_path / "publish-two" / "output")
    assert (standing(), [each.tags for each in versions(NAME)]) == before


def interrupted(folder: Path, candidate: str) -> tuple[Path, Path]:
    """Simulate a kill between the move of the alias to a better model and the record of its outcome. Return its
    decision and version."""
    day(folder, candidate, "one", old=1.9, new=1.9)
    MlflowClient(tracking_uri()).delete_model_version_tag(NAME, str(versions(NAME)[-1].version), OUTCOME_TAG)
    return folder / f"decide-{candidate}" / "output", folder / f"publish-{candidate}" / "output"


def test_a_candidate_whose_promotion_was_interrupted_is_not_compared_with_itself(home: Path, tmp_path: Path) -> None:
    day(tmp_path, "one", None)
    decision, version = interrupted(tmp_path, "two")
    found = champion(NAME)
    assert standing() == [2, 1] and found and found.version == 1
    promoted(tmp_path / "again", decision, version)
    found = champion(NAME)
    assert standing() == [2, 1] and found and found.version == 2


def test_the_first_model_whose_promotion_was_interrupted_is_still_the_first(home: Path, tmp_path: Path) -> None:
    day(tmp_path, "one", None)
    MlflowClient(tracking_uri()).delete_model_version_tag(NAME, "1", OUTCOME_TAG)
    assert champion(NAME) is None


def test_after_an_interrupted_promotion_another_candidate_may_be_promoted(home: Path, tmp_path: Path) -> None:
    """New text arrived before the run was repeated."""
    day(tmp_path, "one", None)
    interrupted(tmp_path, "two")
    reports = (
        report(tmp_path / "ours", model(tmp_path / "three"), {OLD: 1.8, NEW: 1.8}),
        report(tmp_path / "theirs", tmp_path / "one"),
    )
    version = published(tmp_path / "publish", tmp_path / "three")
    promoted(tmp_path / "promote", decided(tmp_path / "decide", *reports), version)
    assert (standing()[0], outcomes()) == (3, ["promoted", "promoted"])


def test_a_champion_that_changed_meanwhile_is_an_error_and_nothing_moves(home: Path, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        model(tmp_path / name)
        published(tmp_path / f"publish-{name}", tmp_path / name)
    promote(NAME, 1, None)
    reports = (
        report(tmp_path / "ours", tmp_path / "three", {OLD: 1.9}),
        report(tmp_path / "x", tmp_path / "one", {OLD: 2.0}),
    )
    decision = decided(tmp_path / "decide", *reports)
    promote(NAME, 2, 1)  # a promotion by another run
    with pytest.raises(ChampionChanged, match="run the same command again"):
        promoted(tmp_path / "promote", decision, tmp_path / "publish-three" / "output")
    assert (standing(), generations(NAME)) == ([2, 1], [])


def test_a_decision_about_another_model_is_refused(home: Path, tmp_path: Path) -> None:
    decision = decided(tmp_path / "decide", report(tmp_path / "eval", model(tmp_path / "one")))
    other = published(tmp_path / "publish", model(tmp_path / "two"))
    with pytest.raises(StageError, match="promote the version of the model that was compared"):
        promoted(tmp_path / "promote", decision, other)


def test_an_emptied_registry_is_reported(
    home: Path, tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model(tmp_path / "one")
    decision, version = decided(tmp_path / "d", report(tmp_path / "eval", made)), published(tmp_path / "p", made)
    shutil.copy(empty_store, tmp_path / "other.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'other.db'}")
    with pytest.raises(StageError, match=r"published to another registry, or this one was emptied"):
        promoted(tmp_path / "promote", decision, version)


@pytest.mark.long
def test_a_killed_engine_is_run_again_to_the_same_end(home: Path, tmp_path: Path) -> None:
    """The engine is killed at its first change of the registry, then at its second, and so on."""
    day(tmp_path, "one", None)
    made = model(tmp_path / "two")
    reports = report(tmp_path / "ours", made, {OLD: 1.9, NEW: 1.9}), report(tmp_path / "theirs", tmp_path / "one")
    decision, version = decided(tmp_path / "decide", *reports), published(tmp_path / "publish", made)
    job = job_dir(Promotion, tmp_path / "promote", {}, decision=decision, published=version)
    command = [sys.executable, "-m", "tests.promote.killed", str(job)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 8  # the number of kills
    assert (standing(), outcomes()) == ([2, 1], ["promoted", "promoted"])
    assert read(job / "output", "promotion.json")["champion"] == "2"


def test_a_part_that_is_gone_or_another_is_an_error_with_a_way_out(home: Path, tmp_path: Path) -> None:
    day(tmp_path, "one", None)
    (generation,) = generations(NAME)
    (tmp_path / "one" / "model.safetensors").unlink()
    with pytest.raises(LedgerError, match=r"the model .* cannot be loaded: .*Put its files back"):
        load(generation.part("model"))
    shutil.rmtree(tmp_path / "corpus-one")
    with pytest.raises(LedgerError, match="start over under another name"):
        load(generation.part("corpus"))
    corpus(tmp_path / "another").rename(tmp_path / "corpus-one")
    with pytest.raises(LedgerError, match="that the registry expects there"):
        load(generation.part("corpus"))
    shutil.rmtree(tmp_path / "corpus-one")
    model(tmp_path / "corpus-one")
    with pytest.raises(LedgerError, match=r"has the hf_model .* not the corpus"):
        load(generation.part("corpus"))
    with pytest.raises(LedgerError, match="does not say which shards it was made from"):
        generation.part("shards")


def test_a_part_is_found_again_at_another_place(home: Path, tmp_path: Path) -> None:
    """When the part is published from its new place, the registry records the place."""
    day(tmp_path, "one", None)
    shutil.move(tmp_path / "corpus-one", tmp_path / "moved")
    published(tmp_path / "again", tmp_path / "one", corpus=tmp_path / "moved")
    (generation,) = generations(NAME)
    assert load(generation.part("corpus")).place == str(tmp_path / "moved")


def test_parts_in_a_bucket_are_not_downloaded(home: Path, tmp_path: Path) -> None:
    bucket = f"file://{corpus(tmp_path / 'bucket' / 'corpus')}"
    made = model(tmp_path / "model")
    digest = read_manifest(tmp_path / "bucket" / "corpus").digest
    from baton.tasks.promote.ledger import GenerationArtifact

    found = load(GenerationArtifact("corpus", digest, bucket))
    assert isinstance(found, Corpus) and (found.place, found.digest) == (bucket, digest)
    assert isinstance(load(GenerationArtifact("model", read_manifest(made).digest, str(made))), HFModel)
