"""kill -9 during a conversion: nothing is at the target, and the next start continues where it stopped."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import tasks.convert.export_model
import tasks.convert.import_model
from tasks.convert.export_model import ExportOptions, export_model
from tasks.convert.import_model import ImportOptions, import_model, open_hugging_face
from tasks.convert.journal import JOURNAL
from tasks.convert.mapping import Weight
from tasks.convert.megatron_model import open_megatron
from tasks.convert.transfer import export_weight, import_weight
from tasks.models.errors import ConversionError
from tests.convert.models import make
from tests.convert.test_bad_input import assert_same_folders
from tests.convert.test_round_trip import quietly, tensors, to_hugging_face, to_megatron
from tests.convert.test_target import files
from tests.pretrain.ranks import Ranks

Progress = Callable[[int, int], None]
SHARD = 60_000  # bytes: a file has a few weights


def convert(direction: str, source: Path, target: Path, progress: Progress = quietly, **options: Any) -> Path:
    if direction == "import":
        import_model(open_hugging_face(source), target, ImportOptions(**options), progress)
    else:
        export_model(open_megatron(source), target, ExportOptions(max_shard_bytes=SHARD, **options), None, progress)
    return target


def convert_slowly(direction: str, source: Path, target: Path) -> None:
    """With a slow progress callback, which the conversion waits for after every weight."""
    convert(direction, source, target, lambda done, total: time.sleep(0.1))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    make("qwen3", root / "theirs", torch.float32)
    to_megatron(root / "theirs", root / "ours")
    return root


def journal(target: Path) -> list[dict[str, Any]]:
    """The weights written, from the complete lines."""
    path = target.with_name(target.name + ".partial") / JOURNAL
    lines = path.read_text().split("\n")[1:-1] if path.exists() else []
    return [json.loads(line)["content"] for line in lines]


class Killed:
    """A conversion in its own process, to be killed when it has written some weights."""

    def __init__(self, direction: str, source: Path, target: Path, logs: Path) -> None:
        self.target = target
        self.process = Ranks(1, logs, convert_slowly, direction, source, target)

    def after(self, weights: int) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 120
        while len(journal(self.target)) < weights:
            assert self.process.alive(), self.process.log()
            assert time.monotonic() < deadline, "it takes too long"
            time.sleep(0.005)
        self.process.kill()
        return journal(self.target)


@pytest.fixture
def killed(direction: str, source: Path, tmp_path: Path) -> Iterator[Killed]:
    found = Killed(direction, source, tmp_path / "target", tmp_path)
    yield found
    found.process.kill()


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The weights that conversions in this process convert instead of finding them in their files."""
    names: list[str] = []

    def counted(work: Callable[..., Any]) -> Callable[..., Any]:
        def convert_one(weight: Weight, *arguments: Any) -> Any:
            names.append(weight.name)
            return work(weight, *arguments)

        return convert_one

    monkeypatch.setattr(tasks.convert.import_model, "import_weight", counted(import_weight))
    monkeypatch.setattr(tasks.convert.export_model, "export_weight", counted(export_weight))
    return names


def stop(direction: str, source: Path, target: Path, weights: int = 10, **options: Any) -> None:
    """A conversion that ends with an error after some weights, in this process."""
    calls = 0

    def until_then(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls > weights:  # the first is before any of them
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(direction, source, target, until_then, **options)


def test_a_killed_conversion_goes_on(
    direction: str, source: Path, killed: Killed, converted: list[str], tmp_path: Path
) -> None:
    written = killed.after(weights=8)
    target = tmp_path / "target"
    assert not target.exists()
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"target.partial"}
    convert(direction, source, tmp_path / "undisturbed")
    assert 8 <= len(written) < len(converted)
    every, shown = sorted(converted), []
    converted.clear()
    convert(direction, source, target, lambda done, total: shown.append((done, total)))
    assert sorted(converted + [entry["megatron"] for entry in written]) == every
    assert len(shown) == 1 + len(every)
    assert shown[-1][0] == shown[-1][1]
    assert_same_folders(target, tmp_path / "undisturbed")
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("direction", ["import"])
def test_a_second_one_at_the_same_time_is_refused(direction: str, source: Path, killed: Killed, tmp_path: Path) -> None:
    while not journal(tmp_path / "target"):
        assert killed.process.alive(), killed.process.log()
        time.sleep(0.005)
    with pytest.raises(ConversionError, match=r"target\.partial: another conversion is writing to it"):
        convert(direction, source, tmp_path / "target")
    assert killed.process.alive()


def test_a_line_that_was_half_written_counts_for_nothing(direction: str, source: Path, tmp_path: Path) -> None:
    """Also when the conversion is killed twice."""
    target = tmp_path / "target"
    stop(direction, source, target, weights=4)
    written = len(journal(target))
    path = tmp_path / "target.partial" / JOURNAL
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size - 20)
    assert len(journal(target)) == written - 1
    stop(direction, source, target, weights=4)
    convert(direction, source, target)
    assert_same_folders(target, convert(direction, source, tmp_path / "undisturbed"))


@pytest.mark.parametrize("size", [0, 1, 100])
def test_without_the_header_of_its_journal_a_folder_is_left_alone(
    direction: str, source: Path, size: int, tmp_path: Path
) -> None:
    """It may not be ours. The header is synced before anything else, so no power failure can remove it."""
    stop(direction, source, tmp_path / "target")
    os.truncate(tmp_path / "target.partial" / JOURNAL, size)
    before = files(tmp_path)
    with pytest.raises(ConversionError, match=r"target\.partial: is not an unfinished conversion .*delete it"):
        convert(direction, source, tmp_path / "target")
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "garbage", [b"\xff\xfe\n", b"{}\n", b"[1]\n", b"null\n" * 3, b'{"digest": "", "content": {}}\n']
)
def test_lines_that_are_damaged_count_for_nothing(
    direction: str, source: Path, garbage: bytes, converted: list[str], tmp_path: Path
) -> None:
    stop(direction, source, tmp_path / "target", weights=6)
    path = tmp_path / "target.partial" / JOURNAL
    first, *lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first, garbage, *lines[2:], garbage]))
    converted.clear()
    convert(direction, source, tmp_path / "target")
    again = len(converted)
    converted.clear()
    assert_same_folders(tmp_path / "target", convert(direction, source, tmp_path / "undisturbed"))
    assert len(converted) - len(lines) + 1 <= again <= len(converted) - len(lines) + 2


def test_a_file_that_no_conversion_wrote_is_left_alone(direction: str, source: Path, tmp_path: Path) -> None:
    """Neither deleted when another conversion starts there, nor made part of the result."""
    for dtype in (None, "bf16"):
        stop(direction, source, tmp_path / "target")
        (tmp_path / "target.partial" / "content" / "precious").write_text("mine")
        before = files(tmp_path)
        with pytest.raises(ConversionError, match="contains content/precious, which no conversion wrote"):
            convert(direction, source, tmp_path / "target", dtype=dtype)
        assert files(tmp_path) == before
        (tmp_path / "target.partial" / "content" / "precious").unlink()


def test_another_type_starts_anew(direction: str, source: Path, tmp_path: Path) -> None:
    stop(direction, source, tmp_path / "target")
    convert(direction, source, tmp_path / "target", dtype="bf16")
    assert_same_folders(
        tmp_path / "target", convert(direction, source, tmp_path / "undisturbed", quietly, dtype="bf16")
    )


def test_another_source_starts_anew(direction: str, tmp_path: Path) -> None:
    """With the same path and shapes, such as the next checkpoint of the same training."""
    theirs = make("qwen3", tmp_path / "theirs", torch.float32)
    place = theirs if direction == "import" else to_megatron(theirs, tmp_path / "ours")
    stop(direction, place, tmp_path / "target")
    changed = {name: tensor + 1 for name, tensor in tensors(theirs).items()}
    save_file(changed, theirs / "model.safetensors", metadata={"format": "pt"})
    if direction == "export":
        to_megatron(theirs, place, replace=True)
    convert(direction, place, tmp_path / "target")
    assert_same_folders(tmp_path / "target", convert(direction, place, tmp_path / "undisturbed"))


@pytest.mark.parametrize("replaced", ["moved", "in place"])
def test_another_source_of_equal_sizes_and_times_starts_anew(direction: str, replaced: str, tmp_path: Path) -> None:
    """As `mv`, `cp -p` and `rsync -t` leave it."""
    theirs = make("qwen3", tmp_path / "theirs", torch.float32)
    place = theirs if direction == "import" else to_megatron(theirs, tmp_path / "ours")
    stop(direction, place, tmp_path / "target")
    before = Path(shutil.copytree(place, tmp_path / "before"))  # with times
    changed = {name: tensor + 1 for name, tensor in tensors(theirs).items()}
    save_file(changed, theirs / "model.safetensors", metadata={"format": "pt"})
    if direction == "export":
        to_megatron(theirs, tmp_path / "new")
        place = Path(shutil.move(tmp_path / "new", tmp_path / "other"))
    others = Path(shutil.copytree(place, tmp_path / "others"))
    for path in sorted(files(before)):
        os.utime(others / path, ns=((before / path).stat().st_atime_ns, (before / path).stat().st_mtime_ns))
    source = theirs if direction == "import" else tmp_path / "ours"
    if replaced == "moved":
        shutil.rmtree(source)
        others.rename(source)
    else:
        shutil.copytree(others, source, dirs_exist_ok=True)
    convert(direction, source, tmp_path / "target")
    assert_same_folders(tmp_path / "target", convert(direction, source, tmp_path / "undisturbed"))


def test_what_was_there_before_is_replaced_at_the_end_alone(direction: str, source: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(source, tmp_path / "target"))
    (target / "mine").write_text("mine")
    stop(direction, source, target, replace=True)
    assert (target / "mine").exists()
    convert(direction, source, target, quietly, replace=True)
    assert_same_folders(target, convert(direction, source, tmp_path / "undisturbed"))


def test_there_and_back_over_two_stops(models: Path, tmp_path: Path) -> None:
    stop("import", models / "theirs", tmp_path / "ours")
    convert("import", models / "theirs", tmp_path / "ours")
    stop("export", tmp_path / "ours", tmp_path / "back")
    convert("export", tmp_path / "ours", tmp_path / "back")
    assert_same_folders(tmp_path / "back", to_hugging_face(models / "ours", tmp_path / "once", max_shard_bytes=SHARD))
