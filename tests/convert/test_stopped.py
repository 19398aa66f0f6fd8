"""A conversion that is killed or fails leaves nothing at the target, and the next one starts from the beginning."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.tasks.convert.export_model import ExportOptions, export_model
from baton.tasks.convert.import_model import ImportOptions, import_model, open_hugging_face
from baton.tasks.convert.megatron_model import open_megatron
from baton.tasks.convert.partial_dir import LISTING
from baton.tasks.models.errors import ConversionError
from tests.convert.models import make
from tests.convert.test_bad_input import assert_same_folders
from tests.convert.test_round_trip import quietly, to_megatron
from tests.convert.test_target import files
from tests.pretrain.ranks import Ranks

Progress = Callable[[int, int], None]
SHARD = 60_000  # bytes; a file has a few weights


def convert(direction: str, source: Path, target: Path, progress: Progress = quietly, **options: Any) -> Path:
    if direction == "import":
        import_model(open_hugging_face(source), target, ImportOptions(**options), progress)
    else:
        export_model(open_megatron(source), target, ExportOptions(max_shard_bytes=SHARD, **options), None, progress)
    return target


def convert_slowly(direction: str, source: Path, target: Path, begun: Path) -> None:
    """Convert with a slow progress callback, which delays the conversion after every weight. `begun` exists from the
    second weight on."""

    def slow(done: int, total: int) -> None:
        if done:
            begun.touch()
        time.sleep(0.1)

    convert(direction, source, target, slow)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    make("qwen3", root / "theirs", torch.float32)
    to_megatron(root / "theirs", root / "ours")
    return root


class Killed:
    """A conversion in a separate process, to be killed when it has written some weights."""

    def __init__(self, direction: str, source: Path, target: Path, logs: Path) -> None:
        self.begun = logs / "begun"
        self.process = Ranks(1, logs, convert_slowly, direction, source, target, self.begun)

    def wait(self) -> None:
        deadline = time.monotonic() + 120
        while not self.begun.exists():
            assert self.process.alive(), self.process.log()
            assert time.monotonic() < deadline, "the conversion takes too long"
            time.sleep(0.005)


@pytest.fixture
def killed(direction: str, source: Path, tmp_path: Path) -> Iterator[Killed]:
    found = Killed(direction, source, tmp_path / "target", tmp_path)
    yield found
    found.process.kill()


def stop(direction: str, source: Path, target: Path, weights: int = 10, **options: Any) -> None:
    """Run a conversion in this process that fails after some weights."""
    calls = 0

    def until_then(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls > weights:  # the first call precedes all weights
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(direction, source, target, until_then, **options)


def test_a_killed_conversion_starts_again(direction: str, source: Path, killed: Killed, tmp_path: Path) -> None:
    killed.wait()
    killed.process.kill()
    target = tmp_path / "target"
    assert not target.exists()
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"target.partial"}
    convert(direction, source, target)
    assert_same_folders(target, convert(direction, source, tmp_path / "undisturbed"))
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("direction", ["import"])
def test_a_second_one_at_the_same_time_is_refused(direction: str, source: Path, killed: Killed, tmp_path: Path) -> None:
    killed.wait()
    with pytest.raises(ConversionError, match=r"target\.partial: another conversion is writing to it"):
        convert(direction, source, tmp_path / "target")
    assert killed.process.alive()


@pytest.mark.parametrize(
    "listing",
    [
        b"",
        b"\xff\xfe",
        b"[1]",
        b"{}",
        b'{"baton": "an unfin',
        b'{"baton": "an unfinished conversion", "files": null}',
        b'{"baton": "an unfinished conversion", "files": [3]}',
    ],
)
def test_without_a_valid_listing_a_folder_is_left_alone(
    direction: str, source: Path, listing: bytes, tmp_path: Path
) -> None:
    """The folder may be a user's. The listing is synced before anything else, so no power failure can remove it."""
    stop(direction, source, tmp_path / "target")
    (tmp_path / "target.partial" / LISTING).write_bytes(listing)
    before = files(tmp_path)
    with pytest.raises(ConversionError, match=r"target\.partial: is not an unfinished conversion .*delete it"):
        convert(direction, source, tmp_path / "target")
    assert files(tmp_path) == before


def test_a_file_that_no_conversion_wrote_is_left_alone(direction: str, source: Path, tmp_path: Path) -> None:
    """The file is neither deleted when the conversion starts again, nor does it become part of the result."""
    stop(direction, source, tmp_path / "target")
    (tmp_path / "target.partial" / "content" / "precious").write_text("mine")
    before = files(tmp_path)
    with pytest.raises(ConversionError, match="contains content/precious, which no conversion wrote"):
        convert(direction, source, tmp_path / "target")
    assert files(tmp_path) == before


def test_another_conversion_to_the_same_target_deletes_what_the_first_wrote(
    direction: str, source: Path, tmp_path: Path
) -> None:
    """The other conversion writes other files: an import has no file of an export."""
    other = "export" if direction == "import" else "import"
    stop(other, source.parent / ("ours" if direction == "import" else "theirs"), tmp_path / "target")
    convert(direction, source, tmp_path / "target")
    assert_same_folders(tmp_path / "target", convert(direction, source, tmp_path / "undisturbed"))


def test_what_was_there_before_is_replaced_at_the_end_alone(direction: str, source: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(source, tmp_path / "target"))
    (target / "mine").write_text("mine")
    stop(direction, source, target, replace=True)
    assert (target / "mine").exists()
    convert(direction, source, target, quietly, replace=True)
    assert_same_folders(target, convert(direction, source, tmp_path / "undisturbed"))
