"""A model is found as a person names it."""

from pathlib import Path

import pytest

from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import write_manifest
from baton.tasks.models.find import find_model

FACTS = {"label": "sft"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def model(folder: Path, content: str, kind: str = "hf_model", **facts: str) -> str:
    """Write a model, and return its digest."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(content)
    return write_manifest(folder, kind, FACTS | facts, parents={"model": "c" * 64} if kind != "hf_model" else {}).digest


def test_a_published_name_is_its_newest_version(home: Path) -> None:
    for version in ("9", "10"):
        names = {"registry_name": "coder", "registry_version": version}
        model(home / f"jobs/publish-{version}/output", version, "published_model", **names)
    model(home / "jobs/sft-1/output", "not published", label="coder")
    assert find_model("coder") == home / "jobs/publish-10/output"


def test_the_first_letters_of_a_digest_are_enough(home: Path) -> None:
    digest = model(home / "jobs/sft-1/output", "one")
    model(home / "jobs/sft-2/output", "two")
    assert find_model(digest) == find_model(digest[:6]) == home / "jobs/sft-1/output"


def test_an_ambiguous_digest_is_refused_with_the_digests(home: Path) -> None:
    for kind, number in (("published_model", "1"), ("hf_model", "2")):
        folder = home / f"jobs/{number}/output"
        folder.mkdir(parents=True)
        parents = {"model": number * 4 + "a" * 60}
        write_manifest(folder, "published_model", FACTS | {"registry_name": kind}, parents=parents)
    with pytest.raises(StageError, match="2 models have digests that begin so"):
        digest = write_manifest(home / "jobs/1/output", "hf_model", FACTS).digest
        find_model(digest[:6])


def test_a_folder_of_the_current_one_that_is_no_model_hides_no_name(home: Path, tmp_path: Path) -> None:
    (tmp_path / "sft").mkdir()
    model(home / "jobs/sft-1/output", "one")
    assert find_model("sft") == home / "jobs/sft-1/output"


def test_a_link_is_the_same_model(home: Path) -> None:
    digest = model(home / "jobs/sft-1/output", "one")
    (home / "models").mkdir()
    (home / "models/mine").symlink_to(home / "jobs/sft-1/output")
    assert find_model(digest[:12]) == home / "jobs/sft-1/output"


def test_an_unknown_name_is_refused_with_the_known_ones(home: Path) -> None:
    model(home / "jobs/sft-1/output", "one")
    write_manifest(home / "jobs", "corpus", {})
    (home / "jobs/torn/output").mkdir(parents=True)
    (home / "jobs/torn/output/manifest.json").write_text("{")
    with pytest.raises(StageError, match=r"nobody: neither a folder nor a model in .*, which has sft"):
        find_model("nobody")


def test_a_folder_without_a_manifest_is_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "downloaded").mkdir()
    with pytest.raises(StageError, match="start_from"):
        find_model("./downloaded")
