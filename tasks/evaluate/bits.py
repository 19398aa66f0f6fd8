"""Bits per byte: how well a model predicts text, whatever its tokenizer.

    −Σ log2 p(token | what stands before it in its window)  /  UTF-8 bytes of the text

Counted is every token of every document once, and none besides: not the end-of-text token after it.
A document stands after an end-of-text token, as in training. One longer than a window goes on in the
next, which begins with the last token of the one before as its only context.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tasks.data.documents import Document
from tasks.metric import Metric


def held_out_texts(documents: Iterable[Document], budget: int) -> list[Document]:
    """Documents in the order of their ids (so, at random but always the same), until `budget` bytes of
    UTF-8 are reached; the last one's text is cut there, at a whole character."""
    texts: list[Document] = []
    left = budget
    for document in sorted(documents, key=lambda each: each.id):
        if left <= 0:
            break
        texts.append(replace(document, text=document.text.encode()[:left].decode(errors="ignore")))
        left -= len(document.text.encode())
    return texts


def windows(tokens: Sequence[int], start: int, length: int) -> Iterator[list[int]]:
    """One document's tokens in runs of at most `length`, each beginning with one token of context:
    `start` in the first, then the last token of the run before. All but that one are predicted."""
    stream = [start, *tokens]
    for begin in range(0, len(tokens), length - 1):
        yield stream[begin : begin + length]


def bits_per_byte(documents: Sequence[tuple[float, int]]) -> Metric:
    """Of (bits, bytes) of at least one document. The standard error is that of a ratio of two sums over documents, by
    linearization (Cochran, Sampling Techniques, 1977, chapter 6)."""
    size, count = sum(size for _, size in documents), len(documents)
    ratio = math.fsum(bits for bits, _ in documents) / size
    error = None
    if count > 1:
        squares = math.fsum((bits - ratio * of) ** 2 for bits, of in documents)
        error = math.sqrt(squares * count / (count - 1)) / size
    return Metric(ratio, error, count, "bits per byte", higher_is_better=False)
