"""The user's repository in the record of an execution."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.infra.tracking.repository import LARGEST_DIFF, VARIABLE, for_pods, repository


def git(*words: str) -> str:
    names = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *names, *words], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory below the root of a repository with one commit."""
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "train").mkdir()
    monkeypatch.chdir(tmp_path / "train")
    (tmp_path / "train" / "reward.py").write_text("token = tokens[0]\n")
    git("init", str(tmp_path))
    git("add", ".")
    git("commit", "-m", "first")
    repository.cache_clear()
    yield tmp_path / "train"
    repository.cache_clear()


def test_a_clean_repository_is_its_commit(folder: Path) -> None:
    git("remote", "add", "origin", "https://me:hunter22@host/team/models.git")
    assert repository() == {
        "path": "train", "commit": git("rev-parse", "HEAD"), "origin": "https://[redacted]@host/team/models.git",
    }  # fmt: skip


def test_uncommitted_changes_are_a_diff_that_applies_without_secrets(folder: Path) -> None:
    changed = "token = tokens[1]\nPASSWORD = 'hunter22'\n"
    (folder / "reward.py").write_text(changed)
    found = repository()
    git("checkout", "reward.py")
    subprocess.run(["git", "apply"], input=found["diff"], text=True, check=True, cwd=folder.parent)
    assert (folder / "reward.py").read_text() == changed.replace("hunter22", "[redacted]")
    assert len(found["digest"]) == 64


def test_a_long_diff_is_cut(folder: Path) -> None:
    (folder / "reward.py").write_text("x = 1\n" * 200_000)
    assert LARGEST_DIFF < len(repository()["diff"]) < LARGEST_DIFF + 100
    assert repository()["diff"].endswith("bytes in all\n")


def test_only_an_origin_that_others_can_reach_is_recorded(folder: Path) -> None:
    git("remote", "add", "origin", str(folder))
    (folder / "new.py").write_text("")
    assert "origin" not in repository() and repository()["untracked"] == "1"


def test_a_run_s_pods_get_what_its_client_has(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (folder / "reward.py").write_text("changed\n")
    expected, variables = repository(), for_pods()
    repository.cache_clear()
    monkeypatch.chdir("/")
    assert repository() == {}
    repository.cache_clear()
    monkeypatch.setenv(VARIABLE, variables[VARIABLE])
    assert repository() == expected
