"""Hashes of a text's words and word n-grams, for comparing texts.

Words are lower case, in Unicode's form NFC and stripped of punctuation (a single sign is a word: 3 + 5 is not 3 - 5);
apostrophes are straight, and soft hyphens are left out. In languages without spaces each character is a word: a
Chinese or Japanese one; in Thai, Lao, Tibetan, Burmese and Khmer a consonant with its vowel signs, marks and stacked
consonants.
"""

import re
import zlib
from string import punctuation
from unicodedata import normalize

import numpy as np
import numpy.typing as npt

KNOWN_WORDS = 1_000_000  # words whose hashes are cached: about 200 MB

Hashes = npt.NDArray[np.uint64]

_AROUND = punctuation + "“”‘’„«»…–—。、，！？：；（）「」『』၊။។៕་།\u200b"  # the last one stands between words
_LETTER = r"[\u0e00-\u109f\u1780-\u17ff]"  # Thai, Lao, Tibetan, Burmese; Khmer
_EAST_ASIAN = r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
_UNSPACED = re.compile(f"{_LETTER}|{_EAST_ASIAN}")
_CHARACTER = re.compile(
    rf"{_EAST_ASIAN}"
    rf"|[\u0e40-\u0e44\u0ec0-\u0ec4]?{_LETTER}"  # a vowel may be written before its consonant
    rf"(?:(?!\w){_LETTER}|[\u0e30\u0e32\u0e33\u0e45\u0eb0\u0eb2\u0eb3]|(?<=[\u1039\u17d2]){_LETTER})*"
)
_NO_WORD = np.uint64(2**64 - 1)  # in place of a hash
_FACTOR = 6364136223846793005  # the factor of Knuth's 64-bit LCG


def word_hashes(text: str) -> Hashes:
    """A hash of 32 bits for each word."""
    if not text.isascii():
        text = normalize("NFC", text).replace("’", "'").replace("\u00ad", "")  # a soft hyphen
        if _UNSPACED.search(text):  # ten times as fast as the substitution
            text = _CHARACTER.sub(r" \g<0> ", text)
    text = text.lower()
    words = text.split()
    hashes = np.fromiter(map(_known.__getitem__, words), np.uint64, len(words))
    return hashes if hashes.max(initial=0) < _NO_WORD else hashes[hashes != _NO_WORD]


def ngrams(words: Hashes, size: int) -> Hashes:
    """The hash of each `size` consecutive words: the sum of their hashes times powers of an odd number."""
    if len(words) < size:
        return np.empty(0, np.uint64)
    ends = len(words) - size + 1
    hashes = np.zeros(ends, np.uint64)
    for place in range(size):
        hashes += words[place : place + ends] * np.uint64(pow(_FACTOR, place + 1, 2**64))
    return hashes


class _Known(dict[str, int]):
    """The hashes of words seen before."""

    def __missing__(self, word: str) -> int:
        """Hash a word stripped of punctuation; a single ASCII sign is a word."""
        if len(self) >= KNOWN_WORDS:
            self.clear()
        bare = word.strip(_AROUND) or (word if word.isascii() else "")
        self[word] = hashed = zlib.crc32(bare.encode()) if bare else int(_NO_WORD)
        return hashed


_known = _Known()
