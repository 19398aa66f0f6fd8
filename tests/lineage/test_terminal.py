"""`baton runs`, `baton show`, `baton compare` and `baton note` on a recorded store."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from baton.infra.lineage.terminal.compare import main as compare
from baton.infra.lineage.terminal.runs import main as runs
from baton.infra.lineage.terminal.show import main as show
from baton.infra.tracking.execution import begin_execution, close_execution, end_execution
from baton.infra.tracking.note import main as note
from tests.lineage.recorded import LAPTOP, Stored, deliver, record_hostile


def printed(command: click.Command, *words: str, fails: bool = False) -> str:
    result = CliRunner().invoke(command, words)
    assert (result.exit_code != 0) == fails, result.output
    return result.output


def test_runs_are_listed_newest_first_and_searched(store: Stored) -> None:
    lines = printed(runs).splitlines()
    assert [line.split()[0] for line in lines] == ["id", store.second, store.first]
    assert "failed" in lines[1] and "sums.right 25.0 %" in lines[2]
    assert store.first not in printed(runs, "pretrain.optimizer.lr=0.001")
    assert store.second in printed(runs, "-n", "1") and "1 more" in printed(runs, "-n", "1")
    assert "no run matches" in printed(runs, "nothing-like-it")
    assert "not a date" in printed(runs, "--since", "yesterday", fails=True)


def test_the_list_is_also_json(store: Stored) -> None:
    assert {row["id"] for row in json.loads(printed(runs, "--json"))["executions"]} == {store.first, store.second}


def test_a_run_is_shown_by_its_id_and_the_newest_as_last(store: Stored) -> None:
    shown = printed(show, store.second)
    assert shown == printed(show, "last")
    assert "laptop again  failed" in shown and "cached" in shown and "evaluate-base" in shown
    assert "steps: 20" in printed(show, store.first)


@pytest.mark.parametrize("name", ["baton-laptop", "baton-laptop@champion", "baton-laptop/2"])
def test_a_model_is_shown_by_its_registered_name(store: Stored, name: str) -> None:
    shown = printed(show, name)
    assert store.digests["sft"] in shown and "sums.right 25.0 %" in shown and "champion" in shown


def test_an_artifact_is_shown_by_the_first_letters_of_its_digest(store: Stored) -> None:
    shown = printed(show, store.digests["convert"][:8])
    assert "weights.bin" in shown and "pretrain" in shown and "on this machine" in shown
    assert json.loads(printed(show, store.digests["convert"][:8], "--json"))["digest"] == store.digests["convert"]


def test_an_unknown_name_is_refused_and_an_ambiguous_one_lists_what_matches(store: Stored) -> None:
    assert "no artifact, registered model or run has this name" in printed(show, "nothing-like-it", fails=True)
    shown = printed(show, "hf_model", fails=True)
    assert "several artifacts match" in shown and store.digests["sft"][:12] in shown


def test_two_models_are_compared(store: Stored) -> None:
    shown = printed(compare, store.digests["convert"][:8], "baton-laptop")
    assert "sums.right" in shown and "+15.0 points" in shown and "▲ better" in shown
    shown = printed(compare, store.digests["convert"], store.others["convert"])
    assert "pretrain.optimizer.lr" in shown and "0.003" in shown and "0.001" in shown
    assert printed(compare, store.first, "baton-laptop") == printed(compare, "baton-laptop", "baton-laptop")


def test_what_a_terminal_would_obey_is_escaped(home: Path) -> None:
    id = begin_execution("red \x1b[31m name\u202e", LAPTOP)
    end_execution()
    deliver(id)
    close_execution()
    printed(note, id, "a note \x1b]0;title\x07")
    for shown in (printed(runs), printed(show, id), printed(note, id)):
        assert "\x1b" not in shown and "\u202e" not in shown and "\x07" not in shown and "\\x1b" in shown
    record_hostile()
    assert "onerror" in printed(runs)


def test_a_note_and_tags_are_written_shown_and_removed(home: Path) -> None:
    id = begin_execution("laptop", LAPTOP)
    end_execution()
    deliver(id)
    close_execution()
    printed(note, id, "better than before", "--tag", "sweep=lr", "--tag", "keep")
    assert "keep sweep=lr | better than before" in printed(runs)
    assert "better than before" in printed(show, id)
    assert printed(note, id, "", "--untag", "keep") == ""
    line = printed(runs).splitlines()[1]
    assert line.endswith("sweep=lr") and "keep" not in line
    assert printed(note, id) == "no note\nsweep=lr\n"


def test_a_running_execution_delivers_its_own_note(home: Path) -> None:
    id = begin_execution("laptop", LAPTOP)
    printed(note, id, "as it runs")
    end_execution()
    deliver(id)
    close_execution()
    assert "as it runs" in printed(runs)


def test_a_run_of_another_machine_gets_its_note_in_the_store(store: Stored, home: Path) -> None:
    id = begin_execution("laptop", LAPTOP)
    end_execution()
    deliver(id)
    close_execution()
    (home / "executions" / id).rename(home / "elsewhere")
    printed(note, id, "seen from afar", "--tag", "sweep=lr")
    assert "sweep=lr | seen from afar" in printed(runs)
    assert "no run in" in printed(note, "20200101-000000-000-0000", "a note", fails=True)
    assert "no id of a run" in printed(note, "x' or '1'='1", "a note", fails=True)


def test_a_tag_that_is_not_allowed_is_refused(home: Path) -> None:
    id = begin_execution("laptop", LAPTOP)
    assert "a name has letters" in printed(note, id, "--tag", "a b=c", fails=True)
    assert "at most 2,000" in printed(note, id, "x" * 3000, fails=True)


def test_the_commands_start_without_mlflow(store: Stored) -> None:
    """They take about a second, of which MLflow's import would be several."""
    code = "import sys; from baton.infra.lineage.terminal.runs import main; main(standalone_mode=False)"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'mlflow' not in sys.modules"], check=True)
