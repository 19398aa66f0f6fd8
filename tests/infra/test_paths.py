"""The home folder and the cache, at paths where no folder can be created."""

from pathlib import Path

import pytest

from baton.infra.errors import UserError
from baton.infra.paths import baton_home, cache_folder, home_path


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nothing", "/dev/null", "h" * 300])
@pytest.mark.parametrize("variable", ["BATON_HOME", "BATON_CACHE"])
def test_a_place_that_cannot_be_a_folder_is_named_with_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, place: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(variable, str(tmp_path / place))
    with pytest.raises(UserError, match=f"{place}.* cannot be a folder: .*Set {variable} to one") as caught:
        cache_folder("artifacts") if variable == "BATON_CACHE" else baton_home()
    assert "\n" not in caught.value.message


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_HOME", "")
    assert home_path().name == ".baton"


def test_a_leading_tilde_is_the_users_folder_though_no_shell_expands_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BATON_HOME", "~/baton")
    assert home_path() == tmp_path / "baton"
    monkeypatch.setenv("BATON_CACHE", "~/cache")
    assert cache_folder("artifacts") == tmp_path / "cache" / "artifacts"


def test_the_tilde_of_nobody_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_HOME", "~nobody-of-this-name/baton")
    with pytest.raises(UserError, match=r"BATON_HOME=~nobody-of-this-name/baton: .*absolute path"):
        home_path()
