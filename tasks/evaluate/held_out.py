"""A held-out set of text: what of one corpus's held-out documents is scored."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.data.documents import Document, read_documents
from tasks.evaluate.bits import held_out_texts, windows
from tasks.evaluate.subject import Subject

FIRST = "corpus"  # the set that must have text; the others have what they have


@dataclass(frozen=True)
class Scored:
    """One document, the last of a set perhaps not to its end."""

    document: Document
    tokens: list[int]
    windows: list[list[int]]  # each begins with one token of context

    @property
    def bytes(self) -> int:
        return len(self.document.text.encode())


@dataclass(frozen=True)
class HeldOut:
    name: str  # corpus, more.0, …
    documents: list[Scored]

    @property
    def windows(self) -> list[list[int]]:
        return [window for each in self.documents for window in each.windows]

    def lines(self, bits: Sequence[float]) -> list[dict[str, Any]]:
        """The documents with their bits, of the bits of the windows."""
        of_windows = iter(bits)
        return [
            {
                "set": self.name,
                "id": each.document.id,
                "bytes": each.bytes,
                "bits": math.fsum(next(of_windows) for _ in each.windows),
            }
            for each in self.documents
        ]


def choose(name: str, corpus: Path, subject: Subject, held_out_bytes: int) -> HeldOut:
    """Up to `held_out_bytes` of text."""
    scored = []
    for text in held_out_texts(list(read_documents(corpus, "held_out")), held_out_bytes):
        tokens = subject.tokens(text.text)
        # one position is kept for the token that vLLM has to be asked for
        scored.append(Scored(text, tokens, list(windows(tokens, subject.end_of_text, subject.positions - 1))))
    return HeldOut(name, scored)
