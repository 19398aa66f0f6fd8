"""Write Megatron's indexed dataset, `<prefix>.bin` and `<prefix>.idx`, without Megatron.

`.bin` has the concatenated token ids of all documents and nothing else. `.idx`, little-endian:

    offset  size      content
    0       9         the magic, b"MMIDIDX\\0\\0"
    9       8         version, uint64 = 1
    17      1         token type, uint8: 8 = uint16, 4 = int32
    18      8         n, the number of sequences, uint64
    26      8         d, the number of document indices, uint64 = n + 1 (here each document is one sequence)
    34      4 n       length of each sequence in tokens, int32
    34+4n   8 n       byte offset of each sequence in .bin, int64
    34+12n  8 d       index of the first sequence of each document, and n at the end, int64

Source: megatron.core.datasets.indexed_dataset (0.16.1), with which the tests read the files. Lengths are kept in a file
until the end, so that memory does not grow with the corpus.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
SMALL_VOCABULARY = 65_500  # uint16 below this size: Megatron's limit
TokenDtype = np.dtype[np.uint16] | np.dtype[np.int32]
_CODES = {np.dtype(np.uint16): 8, np.dtype(np.int32): 4}
_HEADER = 34  # bytes
_BLOCK = 1 << 20  # lengths in memory at a time


def token_dtype(vocab_size: int) -> TokenDtype:
    return np.dtype(np.uint16) if vocab_size < SMALL_VOCABULARY else np.dtype(np.int32)


def write_index(path: Path, lengths: Path, dtype: TokenDtype) -> None:
    """Write an `.idx` for sequences whose lengths (int32, in tokens) are in the file `lengths`."""
    count = lengths.stat().st_size // 4
    with path.open("wb") as index:
        index.write(MAGIC + struct.pack("<QBQQ", VERSION, _CODES[dtype], count, count + 1))
        for block in _blocks(lengths):
            index.write(block.tobytes())
        start = 0
        for block in _blocks(lengths):
            ends = start + np.cumsum(block, dtype="<i8") * dtype.itemsize
            index.write(np.concatenate(([start], ends[:-1])).astype("<i8").tobytes())
            start = int(ends[-1])
        for first in range(0, count + 1, _BLOCK):
            index.write(np.arange(first, min(first + _BLOCK, count + 1), dtype="<i8").tobytes())


def read_lengths(index: Path) -> npt.NDArray[np.int32]:
    """The length of each sequence in tokens, from an `.idx` that `write_index` wrote."""
    with index.open("rb") as stream:
        _, _, count, _ = struct.unpack("<QBQQ", stream.read(_HEADER)[len(MAGIC) :])
        return np.frombuffer(stream.read(4 * count), "<i4")


def _blocks(lengths: Path) -> Iterator[npt.NDArray[np.int32]]:
    with lengths.open("rb") as stream:
        while data := stream.read(4 * _BLOCK):
            yield np.frombuffer(data, dtype="<i4")
