"""`baton rollback` on the command line."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from baton.infra.commands import command
from baton.tasks.publish.aliases import CHAMPION, version_at
from baton.tasks.publish.champion import promote
from baton.workflows.rollback import main
from tests.publish.test_champion import NAME, decide, make
from tests.tracking.conftest import empty_store, free_port, home  # noqa: F401 - fixtures


def rollback(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def test_it_turns_back_and_says_what_was_and_is(home: Path, tmp_path: Path) -> None:  # noqa: F811
    make(tmp_path, 2)
    promote(NAME, 1, None)
    refused = rollback(NAME)
    assert refused.exit_code == 1
    assert refused.output.strip().endswith("no champion before version 1 is known, so there is none to roll back to")

    promote(NAME, 2, 1)
    decide("promoted", "promoted")
    done = rollback(NAME)
    assert done.stdout == (
        "champion of baton-test: version 1 (base model-1); `previous` is now version 2 (base model-2)\n"
        f"set aside: 2 (to undo: {command('baton rollback baton-test')})\n"
    )
    found = version_at(NAME, CHAMPION)
    assert found and found.version == 1

    shown = rollback(NAME, "--show").stdout.splitlines()
    assert [line.split()[1] for line in shown] == ["1", "2", "1", "aside:"]
    assert shown[1].endswith("rolled back to version 1") and shown[2].endswith("now") and shown[3] == "set aside: 2"


def test_a_store_that_is_away_is_reported_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    refused = rollback(NAME)
    assert refused.exit_code == 1 and "the tracking store is unreachable" in refused.output
