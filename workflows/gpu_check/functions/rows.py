"""Rows of the check, as a user's function yields them."""

from collections.abc import Iterable, Iterator
from typing import Any


def rows(documents: Iterable[dict[str, Any]], prompt: int, completion: int) -> Iterator[dict[str, str]]:
    """Cut each document's text into pairs of a prompt and its continuation; lengths in characters."""
    for document in documents:
        text, length = document["text"], prompt + completion
        for begin in range(0, len(text) - length, length):
            before, after = text[begin : begin + prompt], text[begin + prompt : begin + length]
            if before.strip() and after.strip():
                yield {"prompt": before, "completion": after}
