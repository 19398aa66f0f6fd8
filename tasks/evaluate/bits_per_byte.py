"""Bits per byte, a measure of how well a model predicts text that is independent of its tokenizer.

    −Σ log2 p(token | preceding tokens of its window)  /  UTF-8 bytes of the text

Every token of every document counts once; the end-of-text token after a document and BOS before it don't. A document
follows BOS, if the tokenizer adds one to a text, or else an end-of-text token, as in training. A document longer than a
window continues in the next one, whose only context is the last token of the previous window.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from baton.tasks.core.metric import Metric
from baton.tasks.data.documents import Document


def held_out_texts(documents: Iterable[Document], budget: int) -> list[Document]:
    """Return documents sorted by id (random but reproducible) up to `budget` bytes of UTF-8. The last one is truncated
    at a character boundary, and left out if its first character does not fit."""
    texts: list[Document] = []
    left = budget
    for document in sorted(documents, key=lambda document: document.id):
        if left <= 0:
            break
        if text := document.text.encode()[:left].decode(errors="ignore"):
            texts.append(document._replace(text=text))
        left -= len(document.text.encode())
    return texts


class Window(NamedTuple):
    context: int  # number of the first tokens, which are not predicted
    tokens: list[int]


def windows(tokens: Sequence[int], start: Sequence[int], length: int) -> Iterator[Window]:
    """Split a document's tokens into windows of at most `length`. The context is `start` in the first window, then the
    last token of the previous one."""
    first = length - len(start)
    if tokens:
        yield Window(len(start), [*start, *tokens[:first]])
    for begin in range(first, len(tokens), length - 1):
        yield Window(1, list(tokens[begin - 1 : begin - 1 + length]))


def bits_per_byte(documents: Sequence[tuple[float, int]]) -> Metric:
    """Return bits per byte of at least one (bits, bytes). The standard error is that of a ratio of two sums over
    documents, by linearization (Cochran, Sampling Techniques, 1977, chapter 6)."""
    size, count = sum(size for _, size in documents), len(documents)
    ratio = math.fsum(bits for bits, _ in documents) / size
    error = None
    if count > 1:
        squares = math.fsum((bits - ratio * length) ** 2 for bits, length in documents)
        error = math.sqrt(squares * count / (count - 1)) / size
    return Metric(ratio, error, count, "bits per byte", higher_is_better=False)
