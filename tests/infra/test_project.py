"""A project's baton.toml, found from the folders below it."""

import os
from pathlib import Path

import pytest

from baton.infra.errors import UserError
from baton.infra.paths import home_path
from baton.infra.project import apply, settings


@pytest.fixture(autouse=True)
def below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder deep in a project."""
    for name in ("BATON_HOME", "BATON_STORAGE", "BATON_IMAGE_REGISTRY", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b")
    return tmp_path


def test_without_a_file_the_home_is_in_the_current_folder(below: Path) -> None:
    assert settings() == {} and home_path() == below / "a/b/.baton"


def test_the_home_is_beside_the_file(below: Path) -> None:
    (below / "baton.toml").write_text("")
    assert home_path() == below / ".baton"


def test_the_nearest_file_counts(below: Path) -> None:
    (below / "baton.toml").write_text('home = "one"')
    (below / "a/baton.toml").write_text('home = "two"')
    assert home_path() == below / "a/two"


def test_a_variable_that_is_set_counts_more_than_the_file(below: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (below / "baton.toml").write_text('storage = "s3://b/x"\ntracking = "https://m"')
    monkeypatch.setenv("BATON_STORAGE", "/shared")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    apply()
    assert (os.environ["BATON_STORAGE"], os.environ["MLFLOW_TRACKING_URI"]) == ("/shared", "https://m")
    for name in ("BATON_HOME", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name)


@pytest.mark.parametrize(("text", "reason"), [("colour = 'x'", "colour"), ("home = 1", "home = 1"), ("=", "TOML")])
def test_a_file_that_cannot_be_used_is_refused(below: Path, text: str, reason: str) -> None:
    (below / "baton.toml").write_text(text)
    with pytest.raises(UserError, match=reason):
        home_path()
