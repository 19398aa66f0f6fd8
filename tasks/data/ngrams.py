"""Hashes of a text's words and word n-grams, for comparing texts.

Words are lower case and stripped of punctuation (a single sign is a word: 3 + 5 is not 3 - 5); each Chinese or Japanese
character is a word.
"""

import re
import zlib
from functools import lru_cache
from string import punctuation

import numpy as np
import numpy.typing as npt

KNOWN_WORDS = 1_000_000  # words whose hashes are cached: about 200 MB

Hashes = npt.NDArray[np.uint64]

_AROUND = punctuation + "“”‘’„«»…–—。、，！？：；（）「」『』"
_CHARACTER = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_FACTOR = 6364136223846793005  # of Knuth's 64-bit LCG


def word_hashes(text: str) -> list[int]:
    """A hash of 32 bits for each word."""
    text = text.lower() if text.isascii() else _CHARACTER.sub(r" \g<0> ", text.lower())
    return [number for word in text.split() if (number := _hash(word)) >= 0]


def ngrams(words: Hashes, size: int) -> Hashes:
    """The hash of each `size` consecutive words: the sum of their hashes times powers of an odd number."""
    if len(words) < size:
        return np.empty(0, np.uint64)
    ends = len(words) - size + 1
    hashes = np.zeros(ends, np.uint64)
    for place in range(size):
        hashes += words[place : place + ends] * np.uint64(pow(_FACTOR, place + 1, 2**64))
    return hashes


@lru_cache(KNOWN_WORDS)
def _hash(word: str) -> int:
    """Hash a word stripped of punctuation. Pure punctuation is hashed unstripped if it is ASCII, else it gives -1."""
    bare = word.strip(_AROUND) or (word if word.isascii() else "")
    return zlib.crc32(bare.encode()) if bare else -1
