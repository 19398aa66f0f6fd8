"""Incremental reading of metrics.jsonl."""

import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from baton.infra.tracking.metrics import points_after

names = st.sampled_from(["loss", "norm", "reward"])
lines = st.lists(
    st.tuples(st.integers(0, 30), st.dictionaries(names, st.floats(allow_nan=False, allow_infinity=False))), max_size=40
)


def line(step: int, time: float, values: dict[str, float]) -> str:
    return json.dumps({"step": step, "time": time, **values}) + "\n"


def collect(path: Path, offset: int = 0) -> tuple[dict[tuple[str, int], float], int]:
    points, end = points_after(path, offset)
    found = {(point.name, point.step): point.value for point in points}
    assert len(found) == len(points)
    return found, end


@given(written=lines)
def test_each_point_comes_once_and_the_last_of_a_step_counts(written: list[tuple[int, dict[str, float]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        path.write_text("".join(line(step, number, values) for number, (step, values) in enumerate(written)))
        found, offset = collect(path)
        assert found == {(name, step): value for step, values in written for name, value in values.items()}
        assert offset == path.stat().st_size


@given(cut=st.integers(0, 400))
def test_reading_at_any_moment_loses_and_repeats_nothing(cut: int) -> None:
    whole = "".join(line(step, step, {"loss": step / 7}) for step in range(10)).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        path.write_bytes(whole[:cut])
        first, offset = collect(path)
        path.write_bytes(whole)
        second, _ = collect(path, offset)
        assert not first.keys() & second.keys()
        assert first | second == {("loss", step): step / 7 for step in range(10)}


def test_a_line_that_a_kill_cut_short_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        line(1, 1, {"loss": 3.0}) + '{"step": 2, "ti' + line(2, 2, {"loss": 2.0}) + line(3, 3, {"loss": 1.0})
    )
    found, _ = collect(path)
    assert found == {("loss", 1): 3.0, ("loss", 3): 1.0}


def test_a_file_that_was_begun_anew_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1, 1, {"loss": 3.0}))
    assert collect(path, 10_000)[0] == {("loss", 1): 3.0}


def test_no_file_has_no_points(tmp_path: Path) -> None:
    assert points_after(tmp_path / "metrics.jsonl", 0) == ([], 0)


def test_what_is_behind_a_line_that_a_power_cut_lost_waits_for_the_resumed_run(tmp_path: Path) -> None:
    whole, lost, behind = (line(step, step, {"loss": 1.0}) for step in range(3))
    (tmp_path / "metrics.jsonl").write_text(whole + "\0" * len(lost) + behind)
    assert collect(tmp_path / "metrics.jsonl") == ({("loss", 0): 1.0}, len(whole))
