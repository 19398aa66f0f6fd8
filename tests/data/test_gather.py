"""The union of corpora: the documents that are kept, with few of their ids in memory."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import write_manifest
from baton.tasks.data import gather as gather_engine
from baton.tasks.data.documents import Document, SplitWriter, document, documents_in, read_documents, split_files
from baton.tasks.data.gather import ranges, to_keep
from baton.tasks.data.gone import GoneDocuments
from tests.data.by_hand import facts, new_job


def write(folder: Path, corpora: Sequence[Sequence[str]]) -> list[Path]:
    """Write the files of the train splits of corpora with these documents."""
    for number, documents in enumerate(corpora):
        (folder / str(number)).mkdir()
        writer = SplitWriter(folder / str(number), "train")
        for text in documents:
            writer.add(document("", text))
        writer.close()
    return [file for number in range(len(corpora)) for file in split_files(folder / str(number), "train")]


def documents_of(path: Path) -> list[Document]:
    return documents_in(pq.read_table(path))


@given(
    st.lists(st.lists(st.sampled_from("abcdefgh")), max_size=4), st.sets(st.sampled_from("abcxyz")), st.integers(1, 9)
)
def test_the_first_of_each_text_is_kept_unless_it_is_gone(corpora: list[list[str]], gone: set[str], ids: int) -> None:
    with TemporaryDirectory() as folder:
        files = write(Path(folder), corpora)
        present = [np.array([item.text not in gone for item in documents_of(path)], bool) for path in files]
        keep, duplicates = to_keep(files, present, lambda done, whole: None, ids)
        whole = [item.text for path in files for item in documents_of(path)]
    kept = [text for text, is_kept in zip(whole, [flag for mask in keep for flag in mask], strict=True) if is_kept]
    left = [text for text in whole if text not in gone]
    assert kept == list(dict.fromkeys(left))
    assert duplicates == len(left) - len(kept)


@pytest.mark.parametrize("number", [0, 1, 2, 3, 1000])
def test_each_id_is_in_one_range(number: int) -> None:
    cut = list(ranges(number))
    for some in ("0" * 64, "f" * 64, document("", "a text").id):
        assert sum(low <= some < high for low, high in cut) == 1


def test_nothing_that_is_left_is_a_corpus_without_documents(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    write_manifest(tmp_path / "0", "corpus", {})
    (tmp_path / "newest").mkdir()
    GoneDocuments({}).write(tmp_path / "newest")
    write_manifest(tmp_path / "newest", "corpus", {})
    job = new_job(tmp_path / "job", "gather", {}, corpora=[tmp_path / "0"], newest=tmp_path / "newest")
    gather_engine.work(job)
    assert (facts(job.output)["documents"], list(read_documents(job.output, "train"))) == (0, [])


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["a" * 64, "b" * 64]), st.sampled_from(["train", "held_out"])),
        st.sets(st.integers(0, 50), min_size=1),
    )
)
def test_places_of_gone_documents_are_read_as_they_were_written(places: dict[tuple[str, str], set[int]]) -> None:
    rows = {part: np.array(sorted(numbers)) for part, numbers in places.items()}
    with TemporaryDirectory() as folder:
        GoneDocuments(rows, [key * 64 for key in "abc"]).write(Path(folder))
        write_manifest(Path(folder), "corpus", {})
        gone = GoneDocuments.read(Path(folder))
    assert {part: set(read.tolist()) for part, read in gone.rows.items()} == places
    assert all(mask.all() for mask in gone.present(("c" * 64, "train"), [3]))
    with pytest.raises(StageError, match="corpus dddddddddddd: the increment does not list its documents"):
        gone.present(("d" * 64, "train"), [3])
    for part, numbers in places.items():
        first, second = gone.present(part, [20, 31])
        assert (len(first), len(second)) == (20, 31)
        assert {*np.flatnonzero(~np.concatenate([first, second])).tolist()} == numbers


def test_places_beyond_a_corpus_are_refused() -> None:
    with pytest.raises(StageError, match="corpus aaaaaaaaaaaa: has 2 documents in train, and row 2 is gone"):
        GoneDocuments({("a" * 64, "train"): np.array([2])}, ["a" * 64]).present(("a" * 64, "train"), [2])
