"""Blocks of names give the same results as the corpora from which they were built."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from baton.infra.paths import cache_folder
from baton.infra.storage import buckets as storage
from baton.tasks.core.job import Input
from baton.tasks.core.manifest import digest_in, write_manifest
from baton.tasks.core.stored import send
from baton.tasks.data import known_documents
from baton.tasks.data.compare import BLOCK, Known
from baton.tasks.data.documents import SPLITS, Split, write_names
from baton.tasks.data.known_blocks import KnownBlocks, blocks
from baton.tasks.data.known_documents import KnownItem, find_known
from baton.tasks.data.partition_cache import DiskCache
from baton.tasks.data.stored_folders import StoredFolders
from tests.data.by_hand import digest
from tests.data.test_increment import Chain
from tests.data.test_source_changes import names
from tests.s3 import S3

Day = dict[str, str]  # {name: document}


class Corpora(KnownBlocks):
    """Reads all corpora, and stores no blocks."""

    def add(self, corpora: Sequence[Input]) -> None:
        for corpus in corpora:
            self.known.add(corpus.local(), corpus.digest)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Nights:
    """A source that changes, and a corpus of each night."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.corpora: list[Input] = []

    def look(self, day: Day, dropped: str = "") -> None:
        """Compare a night with blocks, without any, and with the corpora alone. `dropped` is a document of the source
        that is not in the corpus, such as a near duplicate."""
        night = self.root / f"night-{len(self.corpora)}"
        scan = night / "scan"
        scan.mkdir(parents=True)
        write_names(scan / "train-00000.parquet", [(each, name) for name, each in day.items()])
        np.save(scan / "held_out.npy", np.zeros(len(day), bool))
        results = dict[str, dict[str, bytes]]()
        for cache in ("blocks", f"none-{len(self.corpora)}"):
            results[cache] = self._found(night / cache, scan, cache)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(known_documents, "KnownBlocks", Corpora)
            expected = self._found(night / "corpora", scan, "unused")
        assert all(result == expected for result in results.values())
        new, edited = np.load(night / "corpora" / "00000.npy")
        splits: dict[str, Split] = {}
        for each, is_known, is_moved in zip(day.values(), new, edited, strict=True):
            if not is_known and each != dropped:
                splits.setdefault(each, SPLITS[(each < "X") ^ bool(is_moved)])
        self._write(night / "corpus", day, splits)
        shutil.copy(night / "corpora" / "changes.json", night / "corpus")
        about = write_manifest(night / "corpus", "corpus", {})
        self.corpora.append(Input(about.digest, str(night / "corpus")))

    def _found(self, folder: Path, scan: Path, cache: str) -> dict[str, bytes]:
        find_known(KnownItem(folder, self.corpora, [scan], [], DiskCache(self.root / cache)), lambda *_: None)
        return files(folder)

    def _write(self, corpus: Path, day: Day, splits: dict[str, Split]) -> None:
        corpus.mkdir()
        for split in SPLITS:
            first = {each: name for name, each in reversed(day.items()) if splits.get(each) == split}
            if first:
                write_names(corpus / f"{split}-00000.parquet", [*first.items()])


DOCUMENTS = "UVWXYZ"
histories = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abcd"), st.sampled_from(DOCUMENTS), min_size=1),
        st.sampled_from(["", *DOCUMENTS]),
    ),
    min_size=2,
    max_size=9,
)


@pytest.mark.long
@given(histories)
@settings(max_examples=8, deadline=None)
@example([({"a": "X"}, ""), ({"b": "X"}, ""), ({"a": "Y"}, "Y"), ({"a": "X", "b": "Y"}, ""), ({"b": "Z"}, "")])
def test_whatever_happens_blocks_give_what_the_corpora_give(history: list[tuple[Day, str]]) -> None:
    """Texts are added, edited, renamed, deleted and restored, in any order."""
    with TemporaryDirectory() as root:
        nights = Nights(Path(root))
        for day, dropped in history:
            nights.look(day, dropped)


@pytest.mark.parametrize(("number", "expected"), [(0, []), (1, [(0, 1)]), (11, [(0, 8), (8, 10), (10, 11)])])
def test_blocks_are_as_the_binary_digits(number: int, expected: list[tuple[int, int]]) -> None:
    assert blocks(number) == expected


@dataclass
class Counted:
    """Counts the blocks that are read."""

    folders: DiskCache
    loaded: int = 0

    def load(self, target: Path) -> bool:
        found = self.folders.load(target)
        self.loaded += found
        return found

    def store(self, folder: Path) -> None:
        self.folders.store(folder)


def test_a_night_reads_few_blocks_and_the_newest_corpus_alone(tmp_path: Path) -> None:
    corpora = list[Input]()
    for night in range(20):
        cache = Counted(DiskCache(tmp_path / "kept"))
        shown = list[int]()
        added = KnownBlocks(Known(), tmp_path / f"{night}", cache, shown.append)
        added.add(corpora)
        assert added.corpora_read == min(1, night)
        assert cache.loaded <= night.bit_length()
        assert shown[-1:] == ([night] if night else [])
        assert names(added.known) == {f"{each}.txt": f"{each:064}" for each in range(night)}
        corpus = tmp_path / f"corpus-{night}"
        corpus.mkdir()
        write_names(corpus / "train-00000.parquet", [(f"{night:064}", f"{night}.txt")])
        corpora.append(Input(write_manifest(corpus, "corpus", {}).digest, str(corpus)))


def test_a_pod_fetches_blocks_and_the_newest_corpus_alone(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, corpora = f"{s3.address}/{uuid4().hex}", list[Input]()
    with s3.flyte(tmp_path):
        for night in range(6):
            monkeypatch.setenv("BATON_HOME", str(tmp_path / f"pod-{night}"))
            blocks_of = KnownBlocks(Known(), tmp_path / f"{night}", StoredFolders(f"{root}/known"), lambda _: None)
            blocks_of.add(corpora)
            fetched = [digest_in(path.name) for path in cache_folder("artifacts").iterdir() if path.is_dir()]
            assert fetched == [corpus.digest for corpus in corpora[-1:]]
            assert {*names(blocks_of.known)} == {f"{each}.txt" for each in range(night)}
            corpus = tmp_path / f"corpus-{night}"
            corpus.mkdir()
            write_names(corpus / "train-00000.parquet", [(f"{night:064}", f"{night}.txt")])
            made = write_manifest(corpus, "corpus", {}).digest
            corpora.append(Input(made, "", send(str(corpus), root)))


def test_without_its_blocks_a_night_says_that_it_reads_the_corpora(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nights = Nights(tmp_path)
    for night in range(3):
        nights.look({"a": f"{night}"})
    assert "known text: read from 2 corpora; no cached block has their names" in capfd.readouterr().out


def test_increments_are_the_same_with_blocks_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = list[list[str]]()
    for attempt in range(2):
        chain = Chain(tmp_path / str(attempt))
        chain.root.mkdir()
        for night in range(6):
            if attempt or not night:
                monkeypatch.setenv("BATON_HOME", str(tmp_path / f"home-{attempt}-{night}"))
            for number in range(10):
                (chain.source / f"{night}-{number}.txt").write_text(f"{night} {number}\n")
            if night:
                (chain.source / f"{night - 1}-0.txt").unlink()
                (chain.source / f"{night - 1}-1.txt").write_text(f"edited in {night}\n")
                (chain.source / f"{night - 1}-2.txt").rename(chain.source / f"{night}-moved.txt")
                (chain.source / "0-0.txt").write_text("0 0\n" if night % 2 else "again\n")
            chain.look()
        digests.append([digest(corpus) for corpus in chain.corpora])
    assert digests[0] == digests[1]


def test_a_block_has_the_same_bytes_whoever_writes_it(tmp_path: Path) -> None:
    """Two pods may write it at the same time, if one of them was abandoned and retried."""
    documents = [(f"{each:064}", f"{each}.txt") for each in range(200_000)]  # several row groups
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_names(corpus / "train-00000.parquet", documents)
    written = set[bytes]()
    for attempt in range(3):
        known = Known(tmp_path / f"tables-{attempt}", threads=2)
        known.add(corpus, "")
        folder = tmp_path / f"{attempt}"
        folder.mkdir()
        known.write(folder, 0)
        known.close()
        written.add((folder / BLOCK).read_bytes())
    assert len(written) == 1


def test_a_damaged_folder_in_storage_is_replaced(s3: S3, tmp_path: Path) -> None:
    """The folder is replaced even if its files have the right sizes."""
    folder = tmp_path / "made" / "block.names"
    folder.mkdir(parents=True)
    (folder / "names.parquet").write_bytes(b"right")
    write_manifest(folder, "names", {})
    root = f"{s3.address}/{uuid4().hex}"
    with s3.flyte(tmp_path):
        folders = StoredFolders(root)
        folders.store(folder)
        storage.write(f"{root}/block.names/names.parquet", b"wrong")
        assert not folders.load(tmp_path / "damaged" / "block.names")
        folders.store(folder)
        assert folders.load(tmp_path / "taken" / "block.names")
    assert (tmp_path / "taken/block.names/names.parquet").read_bytes() == b"right"
