"""Logs of any length are shown without reading them entirely."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from baton.infra.lineage.files import (
    BLOCK_BYTES,
    CHUNK_BYTES,
    LOG_BYTES,
    LOG_TAIL_BYTES,
    file_of,
    full_log,
    log,
    look,
    shown,
    tail,
)
from baton.infra.lineage.liveness import local_status
from baton.infra.paths import located
from baton.infra.tracking.redact import KEY_CHARACTERS


@pytest.fixture
def job(home: Path) -> Path:
    folder = home / "jobs" / "one"
    folder.mkdir(parents=True)
    return folder


def bytes_read(work: Callable[[], Any]) -> int:
    def so_far() -> int:
        return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])

    before = so_far()
    work()
    return so_far() - before


def large(job: Path, size: int, last: str) -> Path:
    """Write a log that begins with a hole in the file."""
    path = job / "log.txt"
    with path.open("wb") as stream:
        stream.truncate(size)
        stream.seek(0, os.SEEK_END)
        stream.write(f"\n{last}\n".encode())
    return path


def test_the_end_of_a_log_is_read_from_its_end(job: Path) -> None:
    large(job, 1 << 32, "step 7")
    found = tail(str(job))
    assert found and found[0].endswith("step 7") and not found[1]
    assert bytes_read(lambda: tail(str(job))) < 2 * LOG_TAIL_BYTES + KEY_CHARACTERS


def test_lines_are_counted_once(job: Path) -> None:
    large(job, 2 * BLOCK_BYTES, "step 7")
    found = log(str(job))
    assert found and found.lines[-1] == (2, "step 7")
    assert bytes_read(lambda: log(str(job))) < 2 * LOG_BYTES


def test_lines_have_the_numbers_that_an_editor_shows(job: Path) -> None:
    (job / "log.txt").write_text("".join(f"step {number}\n" for number in range(1, 60_001)))
    found = log(str(job))
    assert found and not found.whole
    assert all(text == f"step {number}" for number, text in found.lines)
    matching = log(str(job), "step 4321")
    assert matching and matching.lines == [(number, f"step {number}") for number in (4321, *range(43210, 43220))]


def test_a_line_that_never_ends_is_read_in_pieces(job: Path) -> None:
    (job / "log.txt").write_text("50 %\r" * 350_000)
    pieces = full_log(str(job))
    assert pieces and max(map(len, pieces)) < 3 << 20
    assert tail(str(job)) == ("50 %", False)


def test_an_artifact_of_many_files_is_there(job: Path) -> None:
    (job / "output").mkdir()
    files = ", ".join(f'"part-{number:07}": {{"size": 1, "blake3": "{number:064x}"}}' for number in range(40_000))
    (job / "output" / "manifest.json").write_text(f'{{"digest": "d", "files": {{{files}}}}}')
    assert look(str(job), "d").state == "here"


@pytest.mark.parametrize("name", ["report.json", "rows.jsonl", "report.html", "README.md", "notes", "broken.json"])
def test_a_file_of_text_is_served_without_its_secrets(job: Path, name: str) -> None:
    spec = {"spec": {"api_key": "hunter22", "code": "URL = 'https://me:hunter22@host/x'", "tokens": 7}}
    (job / name).write_text(json.dumps(spec) + ("}" if name == "broken.json" else ""))
    pieces = shown(job / name)
    text = "".join(pieces or ())
    assert "hunter22" not in text and "https://[redacted]@host/x" in text
    if name == "report.json":
        assert json.loads(text)["spec"]["tokens"] == 7


def test_weights_and_tokens_are_served_as_they_are(job: Path) -> None:
    (job / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      password=hunter22")
    (job / "tokenizer.json").write_text('{"password=": 1, "secret: token": 2}')
    (job / "rows.jsonl.zst").write_bytes(b"password=hunter22")
    assert [shown(job / name) for name in ("model.safetensors", "tokenizer.json", "rows.jsonl.zst")] == [None] * 3


KEY = "".join(f"MIIEvQIBADANBg{number:04}kqhkiG9w0BAQEFAASC\n" for number in range(40))
PEM = f"-----BEGIN PRIVATE KEY-----\n{KEY}-----END PRIVATE KEY-----\n"


def views(job: Path) -> str:
    """Return all parts of a log that the pages show."""
    found, matching = log(str(job)), [log(str(job), word) for word in ("MIIEv", "kqhkiG9w0", "step", "hunter", "---")]
    end, pieces = tail(str(job)), full_log(str(job))
    assert found and end and pieces and all(matching)
    lines = [text for each in (found, *filter(None, matching)) for _, text in each.lines]
    return "\n".join([*lines, end[0], *pieces])


@pytest.mark.parametrize("after", [0, 100, LOG_TAIL_BYTES - 1000, LOG_BYTES - 1000, CHUNK_BYTES - 1000, CHUNK_BYTES])
@pytest.mark.parametrize("before", [0, CHUNK_BYTES - 900])
def test_a_part_of_a_log_is_redacted_as_the_whole_is(job: Path, before: int, after: int) -> None:
    """A key may begin before the displayed part, and end after it."""
    steps = "step 7, loss 0.5\n"
    (job / "log.txt").write_text(
        f"{steps * (before // len(steps))}{PEM}{steps * (after // len(steps))}api_key=hunter22\n"
    )
    shown = views(job)
    assert "MIIE" not in shown and "hunter" not in shown
    assert "step 7, loss 0.5" in shown or not before + after


def test_a_key_keeps_the_numbers_of_the_lines_after_it(job: Path) -> None:
    (job / "log.txt").write_text(f"{PEM}step 1\n")
    found, matching = log(str(job)), log(str(job), "step")
    assert found and matching and found.lines[-1] == matching.lines[0] == (43, "step 1")


def test_a_key_without_an_end_hides_no_more_than_a_key_has(job: Path) -> None:
    (job / "log.txt").write_text("-----BEGIN PRIVATE KEY-----\n" + KEY * 100 + "step 1\n")
    found = log(str(job), "step 1")
    assert found and len(found.lines) == 1


def test_the_end_of_a_line_without_end_has_no_part_of_a_secret(job: Path) -> None:
    for more in range(1, 30):
        (job / "log.txt").write_text(f"api_key=hunter2hunter2hunter2 {'x' * (LOG_TAIL_BYTES - more)}")
        found = tail(str(job))
        assert found and "hunter" not in found[0] and "unter" not in found[0]


@contextmanager
def without_root() -> Iterator[None]:
    """Give this process the rights of another user, like those of the lineage pages in their pod."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder that no other user can read, like /root."""
    with TemporaryDirectory() as name:
        folder = Path(name) / "root"
        folder.mkdir()
        folder.chmod(0)
        Path(name).chmod(0o755)
        yield folder
        folder.chmod(0o700)


def test_an_artifact_of_another_user_is_elsewhere(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = str(closed / ".baton" / "jobs" / "sft-1")
    monkeypatch.setenv("BATON_HOME", str(closed.parent / "home"))
    with without_root():
        assert located(f"{job}/output") == f"{job}/output"
        assert look(job, "d").state == "elsewhere"
        assert (file_of(job, "d", "report.html"), tail(job), log(job), full_log(job)) == (None,) * 4


def test_a_home_of_another_user_is_elsewhere(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_HOME", str(closed))
    with without_root():
        assert look(str(closed / "jobs" / "sft-1"), "d").state == "elsewhere"
        assert tail(str(closed / "jobs" / "sft-1")) is None
        assert local_status("20260101-000000-000-abcd") is None


@pytest.mark.parametrize(
    "name", ["x" * 300, "/".join("x" * 200 for _ in range(25)), "nul\0", "\ud800", "loop", "log.txt/x"]
)
def test_a_path_that_cannot_be_looked_at_is_one_that_is_not_here(job: Path, name: str) -> None:
    (job / "loop").symlink_to(job / "loop")
    (job / "log.txt").touch()
    place = str(job / name)
    assert located(place) == place
    assert look(place, "d").state in ("elsewhere", "gone")
    assert tail(place) is None and local_status(name) is None
