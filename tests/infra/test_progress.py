"""Progress lines in a log."""

import json
import re
import time
from pathlib import Path

import pytest

from baton.infra import progress
from baton.infra.progress import ProgressBar


def test_a_line_of_a_log_says_how_much_time_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "QUIET_INTERVAL_S", 0.0)
    bar = ProgressBar("corpus", tmp_path)
    for done in (90, 10, 20):  # 90 is from a killed engine
        (tmp_path / "progress.json").write_text(json.dumps({"done": done, "total": 100, "unit": "%", "shown": {}}))
        time.sleep(0.2)
        bar.update()
    of_killed, first, second = capsys.readouterr().err.splitlines()
    assert "left" not in of_killed + first
    assert re.fullmatch(r"corpus +\d+ s  20/100 %  \d+ s left", second)


def test_notices_are_shown_once_as_they_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar("sft", tmp_path)
    bar.update()  # there are no notices yet
    with (tmp_path / "notices.jsonl").open("a", buffering=1) as notices:
        notices.write('{"text": "12 rows are left out"}\n{"text": "half')
        bar.update()
        assert capsys.readouterr().err == "! sft: 12 rows are left out\n"
        notices.write(' a line"}\n')
    bar.close(succeeded=True)
    assert capsys.readouterr().err.startswith("! sft: half a line\n✓ sft")
