"""Models by name: a link in the home for each published model."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from baton.tasks.models.find import ModelFolder, model_names
from baton.tasks.models.named import NotNamed, name_model
from tests.source import ROOT


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def outputs(home: Path) -> Path:
    for name in ("one", "two"):
        (home / "jobs" / name).mkdir(parents=True)
    return home / "jobs"


@click.command()
@click.argument("model", type=ModelFolder())
def show(model: Path) -> None:
    click.echo(model)


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def asked(model: str) -> str:
    return CliRunner().invoke(show, [model]).output.strip()


def test_a_name_leads_to_the_model_that_got_it_last(outputs: Path, home: Path) -> None:
    name_model("chat", outputs / "one")
    assert name_model("chat", outputs / "two") == home / "models" / "chat"
    assert asked("chat") == asked(str(home / "models" / "chat")) == str(outputs / "two")
    assert listed(home / "models") == model_names() == ["chat"]


def test_a_home_can_be_moved(outputs: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name_model("chat", outputs / "one")
    home.rename(home.with_name("moved"))
    monkeypatch.setenv("BATON_HOME", str(home.with_name("moved")))
    assert asked("chat") == str(home.with_name("moved") / "jobs" / "one")


def test_each_home_has_its_own_names(outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name_model("chat", outputs / "one")
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "other"))
    name_model("chat", outputs / "two")  # shared by both
    assert asked("chat") == str(outputs / "two")
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    assert asked("chat") == str(outputs / "one")


def test_a_folder_of_that_name_stays_as_it_is(outputs: Path, home: Path) -> None:
    (home / "models" / "chat").mkdir(parents=True)
    (home / "models" / "chat" / "kept").touch()
    with pytest.raises(NotNamed, match="is no link, and stays as it is"):
        name_model("chat", outputs / "one")
    assert listed(home / "models") == ["chat"] and listed(home / "models" / "chat") == ["kept"]


@pytest.mark.parametrize("name", ["", "..", "../chat", "a/b", ".hidden", "a\nb", "\x1b[2J", "é", "a" * 101, "0a" * 32])
def test_only_safe_names_become_links(outputs: Path, home: Path, name: str) -> None:
    with pytest.raises(NotNamed):
        name_model(name, outputs / "one")
    assert not (home / "models").exists()


def test_a_home_that_cannot_be_written_to_is_reported(outputs: Path, home: Path) -> None:
    (home / "models").touch()
    with pytest.raises(NotNamed, match="cannot be a link"):
        name_model("chat", outputs / "one")


def test_processes_that_name_at_once_leave_one_complete_link(outputs: Path, home: Path) -> None:
    code = (
        "from pathlib import Path; from baton.tasks.models.named import name_model\n"
        "for _ in range(100): assert name_model('chat', Path({!r})).is_dir()"
    )
    commands = [[sys.executable, "-c", code.format(str(outputs / name))] for name in ("one", "two")]
    running = [subprocess.Popen(command, cwd=ROOT) for command in commands]
    assert [process.wait() for process in running] == [0, 0]
    assert listed(home / "models") == ["chat"]
    assert (home / "models" / "chat").resolve().name in ("one", "two")


def test_an_unknown_name_is_refused_with_the_known_ones(outputs: Path, home: Path) -> None:
    assert f"chat: neither a folder nor a model in {home}, which has no model" in asked("chat")
    name_model("sums", outputs / "one")
    assert f"a model in {home}, which has sums" in asked("chat")


def test_a_folder_of_the_current_one_comes_before_a_name(
    outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_model("chat", outputs / "one")
    (tmp_path / "chat").mkdir()
    monkeypatch.chdir(tmp_path)
    assert asked("chat") == str(tmp_path / "chat")


def test_a_link_whose_model_is_gone_is_refused(outputs: Path) -> None:
    name_model("chat", outputs / "one")
    (outputs / "one").rmdir()
    assert "does not exist" in asked("chat")
