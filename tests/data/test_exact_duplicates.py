"""Exact duplicates over partitions: the same documents are dropped as with one set of all hashes."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton.tasks.core.manifest import text_digest
from baton.tasks.data.exact_duplicates import KeyWriter, drops_of, exact_drops, hash_ranges, save_drops


def scanned(folder: Path, texts: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the folder of a partition and the texts in its rows."""
    folder.mkdir(parents=True)
    writer = KeyWriter(folder)
    rows = [text for text in texts if writer.is_new(text_digest(text))]
    writer.close()
    return folder, rows


@pytest.mark.parametrize(("in_memory", "in_range"), [(2, 3), (1000, 1000)])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(partitions=st.lists(st.lists(st.sampled_from("abcdefghij"), max_size=12), min_size=1, max_size=5))
def test_of_copies_the_first_stays(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    in_memory: int,
    in_range: int,
    partitions: list[list[str]],
) -> None:
    monkeypatch.setattr("baton.tasks.data.exact_duplicates.KEYS_IN_MEMORY", in_memory)
    monkeypatch.setattr("baton.tasks.data.exact_duplicates.KEYS_IN_RANGE", in_range)
    folder = tmp_path_factory.mktemp("scans")
    scans = [scanned(folder / str(number), texts) for number, texts in enumerate(partitions)]
    ranges = hash_ranges(sum(len(rows) for _, rows in scans))
    files = []
    for item in ranges:
        files.append(folder / f"{item.number}.npy")
        save_drops(files[-1], exact_drops([scan for scan, _ in scans], item))
    kept = []
    for number, (_, rows) in enumerate(scans):
        drops = drops_of(number, files)
        for dropped, first in drops.tolist():
            assert rows[dropped] == scans[first >> 32][1][first & 0xFFFFFFFF]
        gone = set(drops[:, 0].tolist())
        kept += [text for row, text in enumerate(rows) if row not in gone]
    assert kept == list(dict.fromkeys(text for texts in partitions for text in texts))


def test_no_file_without_documents_is_an_error(tmp_path: Path) -> None:
    scan, _ = scanned(tmp_path / "0", [])
    (item,) = hash_ranges(0)
    assert exact_drops([scan], item).shape == (0, 2)
