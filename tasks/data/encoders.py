"""Encode by gigatoken, at 40 times the speed of the tokenizers library, if a comparison proves that the ids are equal.

gigatoken (0.10) is young, and knows the tokenizers of the large model families: byte-level BPE with their patterns,
and SentencePiece's BPE. It encodes a corpus only after its ids were equal to the library's in a comparison
(compare_tokens.py), which is repeated for each corpus. If they differ, gigatoken refuses the tokenizer or crashes, or
the comparison exceeds its time limit, the library encodes, and the reason is reported.
"""

import json
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer as FastTokenizer

from baton.infra.process.child import ChildFailed, ChildTooSlow, ask
from baton.infra.process.limits import resident_memory
from baton.tasks.core.manifest import read_manifest
from baton.tasks.models.tokenizer_files import TOKENIZER, reserved

WORTHWHILE = 64_000_000  # bytes of text; below, the comparison takes as long as the library
LIMIT_S = 300.0  # limit for the comparison, which takes 30 s; after it the library encodes, even if the ids are equal
CACHE = 64_000_000  # bytes; gigatoken keeps the words that it has seen, up to half a gigabyte

Ids = npt.NDArray[Any]
Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Choice:
    """The choice of the encoder of a corpus."""

    reason: str  # why the library encodes; empty if gigatoken does
    excluded: str = ""  # a pattern (RE2); text in which it matches is left to the library

    def is_excluded(self, texts: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return, for each text, whether the library encodes it."""
        return pc.match_substring_regex(texts, self.excluded)

    def text(self) -> str:
        if self.reason:
            return f"Encoded by the tokenizers library: {self.reason}."
        return "Encoded by gigatoken, whose ids were compared, and by the tokenizers library where a character is rare."


def choose(tokenizer: Path, corpus: Path) -> Choice:
    """Compare the two encoders if the corpus is large enough, in a process that may crash."""
    facts = read_manifest(corpus).facts
    if (size := facts["bytes"] + facts["held_out_bytes"]) < WORTHWHILE:
        return Choice(f"the corpus has {size / 1e6:.1f} MB, and gigatoken is tried from {WORTHWHILE / 1e6:g} MB on")
    try:
        reason, excluded = ask("baton.tasks.data.compare_tokens", json.dumps([str(tokenizer), str(corpus)]), LIMIT_S)
    except ChildTooSlow:
        return Choice(f"the comparison with gigatoken took longer than its limit, {LIMIT_S:g} s")
    except ChildFailed as error:
        return Choice(f"gigatoken failed, {error}")
    return Choice(reason, excluded)


class LibraryTokens:
    """The encoder of the tokenizers library."""

    def __init__(self, tokenizer: FastTokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, texts: pa.ChunkedArray) -> tuple[Ids, Lengths]:
        """The ids of documents, one document after the other, and the number of ids of each."""
        encoded = self._tokenizer.encode_batch_fast(texts.to_pylist(), add_special_tokens=False)
        ids = [each.ids for each in encoded]
        lengths = np.array(list(map(len, ids)), np.int64)
        return np.fromiter(chain.from_iterable(ids), np.uint32, int(lengths.sum())), lengths


class FastTokens:
    """gigatoken's encoder of a tokenizer, in one thread. Raises gigatoken's errors for a tokenizer that it does not
    know."""

    def __init__(self, tokenizer: Path) -> None:
        self._tokenizer = tokenizer
        self._encoder: Any = None
        self._open()

    def __call__(self, texts: pa.ChunkedArray) -> tuple[Ids, Lengths]:
        """The ids of documents, one document after the other, and the number of ids of each."""
        if resident_memory() > self._full:
            self._open()
        layout = self._encoder.encode_batch(texts.cast("binary").to_pylist(), parallel=False).layout
        return layout.content.data, np.diff(layout.offsets.data)

    def _open(self) -> None:
        from gigatoken import Tokenizer

        read = json.loads((self._tokenizer / TOKENIZER).read_text(encoding="utf-8"))
        text = reserved(self._tokenizer)  # plain text in a corpus, but gigatoken recognizes every added token
        read["added_tokens"] = [token for token in read.get("added_tokens") or [] if token["content"] not in text]
        self._encoder = None  # frees its memory before more is allocated
        self._encoder = Tokenizer.from_json(json.dumps(read))
        self._full = resident_memory() + CACHE
