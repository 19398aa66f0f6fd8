"""The files that engines share with their observers."""

import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from baton.tasks.core.job import Job, last_json_line
from baton.tasks.posttrain.methods.grpo.rollout_servers import ended, log_of

HUGE = 64 << 30  # bytes, all in a hole of the file


def grown(path: Path, *lines: str) -> Path:
    """Create a huge sparse file with these last lines."""
    with path.open("wb") as file:
        file.seek(HUGE)
        file.write("\n".join(["", *lines]).encode())
    return path


def test_the_last_metrics_are_read_however_many_there_are(tmp_path: Path) -> None:
    metrics = grown(tmp_path / "metrics.jsonl", '{"step": 7}', '{"step": 8}', '{"step": 9, "lo')
    assert last_json_line(metrics) == {"step": 8}  # the writer has not finished a line
    assert last_json_line(tmp_path / "none") == {}
    (tmp_path / "one").write_text('{"step"')
    assert last_json_line(tmp_path / "one") == {}


def test_the_end_of_an_engine_s_log_is_shown_however_long_it_is(tmp_path: Path) -> None:
    grown(log_of(tmp_path, "0-1"), "ValueError: the cause")
    assert "ValueError: the cause" in ended(tmp_path, "0-1", "ended")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_whoever_may_read_a_new_file_may_read_weights(tmp_path: Path, umask: int, mode: int) -> None:
    job = Job(tmp_path, "sft", "hf_model", {}, {})
    before = os.umask(umask)
    try:
        job.empty_output()
        save_file({"weight": torch.zeros(2)}, job.output / "model.safetensors")  # mode 0600, regardless of the umask
        job.finish()
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in job.output.iterdir() if path.is_file()} == {mode}
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []
