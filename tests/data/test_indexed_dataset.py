"""Our `.bin/.idx` files, as read by Megatron."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.tasks.data import indexed_dataset
from baton.tasks.data.indexed_dataset import TokenDtype, token_dtype, write_index
from baton.tasks.pretrain import megatron  # noqa: F401 - makes megatron.core fit this machine, so it comes first

# isort: split
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder

vocabularies = st.sampled_from([300, 65_499, 65_500, 200_000])


def write(prefix: Path, sequences: list[list[int]], dtype: TokenDtype) -> None:
    lengths = prefix.with_suffix(".lengths")
    lengths.write_bytes(np.array([len(ids) for ids in sequences], dtype="<i4").tobytes())
    prefix.with_suffix(".bin").write_bytes(b"".join(np.array(ids, dtype=dtype).tobytes() for ids in sequences))
    write_index(prefix.with_suffix(".idx"), lengths, dtype)


@given(vocabulary=vocabularies, data=st.data())
@settings(max_examples=100, deadline=None)
def test_megatron_reads_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, vocabulary: int, data: st.DataObject
) -> None:
    ids = st.integers(0, vocabulary - 1)
    sequences = data.draw(st.lists(st.lists(ids, min_size=1, max_size=30), min_size=1, max_size=20))
    prefix = tmp_path_factory.mktemp("idx") / "train"
    write(prefix, sequences, token_dtype(vocabulary))
    dataset = IndexedDataset(str(prefix))
    assert [dataset[number].tolist() for number in range(len(dataset))] == sequences
    assert dataset.document_indices.tolist() == list(range(len(sequences) + 1))
    assert dataset.sequence_lengths.tolist() == list(map(len, sequences))


@given(sequences=st.lists(st.lists(st.integers(0, 299), min_size=1, max_size=9), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_the_bytes_are_those_of_megatrons_own_builder(
    tmp_path_factory: pytest.TempPathFactory, sequences: list[list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("idx")
    write(folder / "ours", sequences, token_dtype(300))
    builder = IndexedDatasetBuilder(str(folder / "theirs.bin"), dtype=np.uint16)
    for ids in sequences:
        builder.add_document(np.array(ids), [len(ids)])
    builder.finalize(str(folder / "theirs.idx"))
    for suffix in (".bin", ".idx"):
        assert (folder / f"ours{suffix}").read_bytes() == (folder / f"theirs{suffix}").read_bytes()


@pytest.mark.parametrize("vocabulary", [1, 65_499, 65_500, 65_536, 1_000_000])
def test_the_width_of_a_token_is_megatrons_choice(vocabulary: int) -> None:
    assert token_dtype(vocabulary) == np.dtype(DType.optimal_dtype(vocabulary))


def test_an_index_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = [[number] * (number % 7 + 1) for number in range(250)]
    write(tmp_path / "whole", sequences, token_dtype(300))
    for block in (1, 7, 250, 251):
        monkeypatch.setattr(indexed_dataset, "_BLOCK", block)
        write(tmp_path / "blocks", sequences, token_dtype(300))
        assert (tmp_path / "blocks.idx").read_bytes() == (tmp_path / "whole.idx").read_bytes()
