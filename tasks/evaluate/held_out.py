"""Select the held-out text of a corpus that is scored."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton.tasks.data.documents import Document, read_documents
from baton.tasks.evaluate.bits_per_byte import Window, held_out_texts, windows
from baton.tasks.evaluate.model_info import ModelInfo

FIRST = "corpus"  # the set that must have text; the others may be empty


@dataclass(frozen=True)
class Scored:
    """A scored document; the last of a set may be truncated."""

    document: Document
    tokens: list[int]
    windows: list[Window]

    @property
    def bytes(self) -> int:
        return len(self.document.text.encode())


@dataclass(frozen=True)
class HeldOutText:
    name: str  # corpus, more.0, …
    documents: list[Scored]

    @property
    def windows(self) -> list[Window]:
        return [window for document in self.documents for window in document.windows]

    def lines(self, bits: Sequence[float]) -> list[dict[str, Any]]:
        """Return one line per document, given the bits of each window."""
        window_bits = iter(bits)
        return [
            {
                "set": self.name,
                "id": scored.document.id,
                "bytes": scored.bytes,
                "bits": math.fsum(next(window_bits) for _ in scored.windows),
            }
            for scored in self.documents
        ]


def choose(name: str, corpus: Path, info: ModelInfo, held_out_bytes: int) -> HeldOutText:
    """Select up to `held_out_bytes` of text."""
    scored = []
    for document in held_out_texts(read_documents(corpus, "held_out"), held_out_bytes):
        tokens = info.tokens(document.text)
        # One position is reserved for the token that vLLM always generates
        scored.append(Scored(document, tokens, list(windows(tokens, info.start, info.positions - 1))))
    return HeldOutText(name, scored)
