"""The division of a source into partitions, which together are the complete source."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton.infra.storage.address import File
from baton.tasks.data.partitions import LARGEST, Partition, partitions
from baton.tasks.data.source_spec import AnySource, FilesSource, JsonlSource, ParquetSource, StdlibSource
from baton.tasks.data.sources import read_source


def read(source: AnySource, parts: list[Partition]) -> list[bytes]:
    return [raw.text for part in parts for raw in read_source(source, pieces=part.pieces)]


@pytest.fixture
def files(tmp_path: Path) -> FilesSource:
    for number in range(200):
        (tmp_path / f"{number:03}.txt").write_text(f"document {number} " * (number % 7))
    return FilesSource(path=str(tmp_path))


@pytest.mark.parametrize("target", [1, 100, 1000, 10**6])
def test_the_partitions_of_files_are_the_files(files: FilesSource, target: int) -> None:
    parts = partitions("a", files, target)
    assert read(files, parts) == [raw.text for raw in read_source(files)]
    largest = max(file.size for file in files.files())
    assert all(part.size < LARGEST * target + largest for part in parts)
    assert {part.source for part in parts} == {"a"}


def test_a_source_that_is_smaller_than_a_partition_is_one() -> None:
    assert len(partitions(None, StdlibSource(), 256_000_000)) == 1


def test_a_changed_added_or_removed_file_changes_its_partition_only(files: FilesSource, tmp_path: Path) -> None:
    def cut() -> set[tuple[File, ...]]:
        return {tuple(piece.file for piece in part.pieces) for part in partitions(None, files, 500)}

    before = cut()
    assert len(before) > 10
    (tmp_path / "100.txt").write_text("something else")
    changed = cut()
    assert len(changed - before) == 1
    (tmp_path / "100a.txt").write_text("more")
    added = cut()
    assert len(added - changed) <= 2
    (tmp_path / "042.txt").unlink()
    assert len(cut() - added) <= 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=40), min_size=1, max_size=30),
    target=st.integers(1, 300),
    end=st.sampled_from(["\n", "\r\n", "\n\n"]),
)
def test_ranges_of_bytes_have_every_line_once(tmp_path: Path, texts: list[str], target: int, end: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(end.join(json.dumps({"text": text}, ensure_ascii=False) for text in texts).encode())
    source = JsonlSource(path=str(path))
    assert read(source, partitions(None, source, target)) == [text.encode() for text in texts]


def test_a_line_in_a_range_is_named_by_the_range_s_place(tmp_path: Path) -> None:
    path = tmp_path / "pages.jsonl"
    path.write_text("".join(json.dumps({"text": f"{number:04}"}) + "\n" for number in range(9)))  # 17 bytes each
    source = JsonlSource(path=str(path))
    names = [raw.source for part in partitions(None, source, 60) for raw in read_source(source, pieces=part.pieces)]
    assert names[:6] == ["pages.jsonl#1", "pages.jsonl#2", "pages.jsonl#3", "pages.jsonl#4", *names[4:6]]
    assert names[4:6] == ["pages.jsonl@60#1", "pages.jsonl@60#2"]
    assert len(set(names)) == 9


def test_a_compressed_file_is_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(pa.Codec("zstd").compress(b'{"text": "a"}\n{"text": "b"}\n', asbytes=True))
    source = JsonlSource(path=str(path))
    (part,) = partitions(None, source, 1)
    assert read(source, [part]) == [b"a", b"b"]


def test_parquet_is_cut_between_row_groups_and_rows_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": [f"row {number}" for number in range(100)]}), path, row_group_size=10)
    source = ParquetSource(path=str(path))
    parts = partitions(None, source, path.stat().st_size // 4)
    assert len(parts) > 2
    found = [(raw.source, raw.text) for part in parts for raw in read_source(source, pieces=part.pieces)]
    assert found == [(f"x.parquet#{number}", f"row {number}".encode()) for number in range(100)]


def test_a_broken_parquet_file_is_left_to_its_reader(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1" + b"x" * 1000)
    (part,) = partitions(None, ParquetSource(path=str(tmp_path)), 10)
    assert part.pieces[0].end is None
