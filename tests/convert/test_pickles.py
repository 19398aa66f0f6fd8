"""Malicious pickles and archives are rejected with a one-line error, and none is executed."""

import shutil
import time
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.convert.export_model import ExportOptions, export_model
from baton.tasks.convert.megatron_model import open_megatron
from baton.tasks.convert.pickles import PickleError, load
from baton.tasks.convert.saved_tensor import data_start
from baton.tasks.convert.torch_dist import tiles
from baton.tasks.models.errors import ConversionError
from tests.convert.attacks import ARCHIVES, HARMLESS, OPCODES, SAID, Damage, among_the_metadata, metadata_bytes
from tests.convert.test_round_trip import assert_same, quietly, tensors


@pytest.fixture
def ours(models: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(models / "ours", tmp_path / "ours"))


def export(folder: Path) -> Path:
    export_model(open_megatron(folder), folder.with_name("target"), ExportOptions(), None, quietly)
    return folder.with_name("target")


def refused(damage: Damage, folder: Path, words: str) -> None:
    damage(folder / "checkpoint")
    with pytest.raises(ConversionError, match=words) as caught:
        export(folder)
    assert str(caught.value).isprintable()
    assert not folder.with_name("target").exists()


@pytest.mark.parametrize("name", OPCODES)
def test_opcodes_that_a_checkpoint_has_no_use_for(name: str, ours: Path) -> None:
    opcodes, words = OPCODES[name]
    refused(among_the_metadata(opcodes), ours, rf"\.metadata .*({words})")
    assert Path("a/b").name == "b"


@pytest.mark.parametrize("name", HARMLESS)
def test_depth_and_sharing_cost_nothing(name: str, models: Path, ours: Path) -> None:
    among_the_metadata(HARMLESS[name])(ours / "checkpoint")
    assert_same(tensors(export(ours)), tensors(models / "theirs"))


def test_what_needs_too_much_memory_is_stopped(ours: Path) -> None:
    refused(metadata_bytes(b"\x80\x04" + b"}" * (8 << 20) + b"."), ours, r"needs more than \d+ MiB of memory")


def test_a_pickle_of_too_many_bytes_is_not_read(ours: Path) -> None:
    with (ours / "checkpoint" / ".metadata").open("r+b") as stream:
        stream.truncate(1 << 40)
    began = time.monotonic()
    refused(lambda folder: None, ours, r"\.metadata: has 1099511627776 bytes")
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("name", SAID)
def test_metadata_that_say_what_cannot_be(name: str, ours: Path) -> None:
    refused(SAID[name][0], ours, SAID[name][1])


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_that_torch_would_not_write(name: str, ours: Path) -> None:
    refused(ARCHIVES[name][0], ours, rf"norm\.distcp, bytes 0 to \d+.*{ARCHIVES[name][1]}")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_pickle_error(content: bytes) -> None:
    try:
        load(content, lambda name: True)
    except PickleError as error:
        assert str(error).isprintable()


Box = tuple[tuple[int, ...], tuple[int, ...]]


@given(st.lists(st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 3))] * 2), max_size=5), st.integers(1, 3))
def test_chunks_tile_a_tensor_when_each_number_is_in_one_of_them(spans: list[Box], height: int) -> None:
    chunks = [((a, b), (c, d)) for (a, c), (b, d) in spans]
    covered = sorted(place for (a, b), (c, d) in chunks for place in product(range(a, a + c), range(b, b + d)))
    expected = covered == sorted(product(range(height), range(2))) and all(c and d for _, (c, d) in chunks)
    assert tiles((height, 2), chunks) == expected


def test_chunks_of_a_grid_tile_it() -> None:
    grid = [((layer, row, 0), (1, 4, 5)) for layer in range(3) for row in (0, 4)]
    assert tiles((3, 8, 5), grid)
    assert not tiles((3, 8, 5), grid[:-1])
    assert not tiles((3, 8, 5), [*grid[:-1], grid[0]])
    assert tiles((), [((), ())])
    assert not tiles((), [])


def test_a_tensor_of_more_than_4_gb_is_found(tmp_path: Path) -> None:
    """The sizes of the tensor are in zip64 fields of the archive."""
    path = tmp_path / "large.pt"
    with torch.serialization.skip_data():
        torch.save(torch.empty(3 << 30, dtype=torch.bfloat16), path)  # a sparse file without memory or disk space
    with path.open("rb") as stream:
        saved, start = data_start(stream.fileno(), 0, path.stat().st_size, "large.pt")
    assert saved.shape == (3 << 30,)
    assert start % 64 == 0
