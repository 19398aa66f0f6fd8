"""Compare gigatoken's ids with those of the tokenizers library, for a tokenizer and a corpus, in a separate process:

0. on the ASCII texts of step 2, where no difference is allowed. Most tokenizers that gigatoken misreads, such as those
   with added tokens that stand alone (`single_word`), fail here, within a second
1. around every character of the planes of Unicode that have any, and every two that compose. Text with a character
   where they differ is left to the library, and so is text with characters that Python's tables do not know: the tables
   of the two are from different years, and differ in which characters are letters and which compose
2. on texts that tokenizers disagree about: white space, line ends, digits, contractions, combining marks, the text of
   special tokens and of all others, long words, and random mixtures
3. on at least 8 MB of the corpus, in row groups that are chosen by a hash

The comparison ends at the first difference that is not around some rare characters.
"""

import json
import os
import random
import re
import string
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from blake3 import blake3

from baton.infra.process.child import reply
from baton.tasks.core.manifest import read_manifest
from baton.tasks.data.encoders import Choice, FastTokens, Ids, Lengths, LibraryTokens
from baton.tasks.models.tokenizers import plain, size

SAMPLE = 8_000_000  # bytes of the corpus
MOST_EXCLUDED = 1_000  # characters; a tokenizer with more of them is left to the library

RANGE = 64  # characters
ASSIGNED = (*range(0x40000), *range(0xE0000, 0xE1000), *range(0xF0000, 0xF0100))  # the other planes have no characters
MARKED = 0x20000  # characters above are ideographs, which do not combine
MARKS = ("\u0301", "\u0307", "\u0323", "\u3099")  # combine with many letters
PIECES = (
    *string.ascii_letters, *string.punctuation, *string.digits,
    *" \t\n\r\v\f\0\x1c\x85\xa0\u2028\u3000\u200b\u200d\ufeff\u017f\u212a\u0130\u01c5\ufb01\u212b\ufffd",
    "\r\n", "\n\n", "  ", "    ", "\n    ", "'s", "'S", "'ll", "'LL", "'re", "'\u017f", "ß", "é", "e\u0301", "한",
    "\u1112\u1161\u11ab", "漢字", "かな", "か\u3099", "Привет", "שָׁלוֹם", "नमस्ते", "\u0661\u0662", "Ⅳ", "½", "²",
    "1\u20e3", "👩\u200d👧", "🇩🇪", "\U0001d7d8", "\U00010400",
)  # fmt: skip
LONG, REPEATED = 70_000, "a \n1-é漢"
MIXTURES = 6_000

Encodes = Callable[[pa.ChunkedArray], tuple[Ids, Lengths]]


@dataclass(frozen=True)
class BothEncoders:
    """Two encoders of one tokenizer."""

    library: Encodes
    fast: Encodes

    def equal(self, texts: pa.ChunkedArray) -> bool:
        """Return whether they give the same ids."""
        return self.first_different(texts) is None

    def first_different(self, texts: pa.ChunkedArray) -> int | None:
        """The number of the first text for which their ids differ."""
        (ids, lengths), (fast_ids, fast_lengths) = self.library(texts), self.fast(texts)
        if np.array_equal(lengths, fast_lengths):
            odd = np.flatnonzero(np.asarray(ids) != np.asarray(fast_ids))
            return int(np.searchsorted(np.cumsum(lengths), odd[0], side="right")) if len(odd) else None
        most = int(np.flatnonzero(lengths != fast_lengths)[0])  # up to it, the ids of both are at the same places
        end = int(lengths[:most].sum())
        odd = np.flatnonzero(np.asarray(ids)[:end] != np.asarray(fast_ids)[:end])
        return int(np.searchsorted(np.cumsum(lengths), odd[0], side="right")) if len(odd) else most

    def different(self, characters: str) -> str:
        """The characters around which the ids differ; all of the given ones if no smaller part shows it."""
        if self.equal(around(characters)):
            return ""
        step = RANGE if len(characters) > RANGE else 1
        parts = [characters[start : start + step] for start in range(0, len(characters), step)]
        differing = "".join(map(self.different, parts)) if len(parts) > 1 else ""
        others = "".join(each for each in characters if each not in differing)
        return differing if differing and self.equal(around(others)) else characters


def compare(
    pair: BothEncoders, tokens: Sequence[str], special: Sequence[str], sample: Iterator[pa.ChunkedArray]
) -> Choice:
    """Choose the encoder by comparing both. `tokens`: the texts of a tokenizer's tokens; `special`: the texts of its
    added tokens."""
    fixed = [pa.chunked_array([tokens], pa.string()), pa.chunked_array([list(hazards(special))])]
    for texts in fixed:
        if different := _different(pair, texts.filter(pc.string_is_ascii(texts))):
            return different
    characters = "".join(chr(each) for each in ASSIGNED if not 0xD800 <= each < 0xE000)  # surrogates are no characters
    step = 16 * RANGE  # more at a time need more memory, and no less time
    excluded = ""
    for start in range(0, len(characters), step):
        excluded += pair.different(characters[start : start + step])
        if len(excluded) > MOST_EXCLUDED or (excluded and excluded[0].isascii()):
            return Choice(
                f"gigatoken's ids differ around {len(excluded)} characters or more, the first is {excluded[0]!r}"
            )
    excluded += "".join(max(each) for each in composed() if not pair.equal(pa.chunked_array([[each, f"a {each}"]])))
    choice = Choice("", f"[{''.join(map(re.escape, excluded))}{unknown()}]")
    for texts in chain(fixed, sample):
        if different := _different(pair, texts.filter(pc.invert(choice.is_excluded(texts)))):
            return different
    return choice


def _different(pair: BothEncoders, texts: pa.ChunkedArray) -> Choice | None:
    """The choice of the library, with the reason, if the ids of one of the texts differ."""
    if (number := pair.first_different(texts)) is None:
        return None
    text = texts[number].as_py()
    return Choice(f"gigatoken's ids differ for a text of {len(text):,} characters, {text[:60]!r}")


def composed() -> list[str]:
    """The canonical decompositions of all characters that have one of two characters."""
    mapped = (unicodedata.decomposition(chr(each)).split() for each in ASSIGNED)
    return ["".join(chr(int(each, 16)) for each in codes) for codes in mapped if len(codes) == 2 and codes[0][0] != "<"]


def unknown() -> str:
    """The characters that Python's tables do not know, for a class of a pattern."""
    codes = [each for each in range(sys.maxunicode + 1) if unicodedata.category(chr(each)) == "Cn"]
    ends = [at for at, (one, next_one) in enumerate(pairwise(codes)) if next_one != one + 1]
    spans = zip([0, *(at + 1 for at in ends)], [*ends, len(codes) - 1], strict=True)
    return "".join(f"{chr(codes[first])}-{chr(codes[last])}" for first, last in spans)


def around(characters: str) -> pa.ChunkedArray:
    """Each character between letters, digits and spaces, beside itself, its neighbours and combining marks."""
    texts = [characters, "".join(f"a{each}b {each}1 {each}{each}\n" for each in characters)]
    if characters and ord(characters[0]) < MARKED:
        # a mark moves before one of a higher class: U+0301 has 230, U+3099 has 8
        texts += ["".join(f" {each}{mark}" for mark in MARKS) + f" e\u0301{each} a\u3099{each}" for each in characters]
    return pa.chunked_array([texts])


def hazards(special: Sequence[str]) -> Iterator[str]:
    """Texts on which tokenizers disagree; the same ones every time."""
    yield from ("", " ", "\n", "\ufeffa")
    for token in special:
        yield from (token, f" {token} ", f"a{token}b{token}", token[:-1], token * 2)
    for piece in PIECES:
        yield f"a{piece} {piece}\n{piece}  {piece * 3}"
    for repeated in REPEATED:
        yield repeated * LONG
    chance = random.Random(0)
    yield "".join(chance.choices(string.ascii_lowercase, k=LONG))
    for _ in range(MIXTURES):
        yield "".join(chance.choices([*PIECES, *special], k=chance.randint(1, 60)))


def sample_of(corpus: Path) -> Iterator[pa.ChunkedArray]:
    """At least SAMPLE bytes of a corpus' files, a row group at a time, or all of them; missing files are left out."""
    listed = read_manifest(corpus).files.items()
    files = {name: entry.blake3 for name, entry in listed if name.endswith(".parquet") and (corpus / name).exists()}
    groups = [
        (blake3(f"{digest} {number}".encode()).digest(), name, number)
        for name, digest in files.items()
        for number in range(pq.read_metadata(corpus / name).num_row_groups)
    ]
    taken = 0
    for _, name, number in sorted(groups):
        with pq.ParquetFile(corpus / name, pre_buffer=False) as file:
            texts = file.read_row_group(number, columns=["text"])["text"]
        yield texts
        taken += texts.nbytes
        if taken >= SAMPLE:
            return


def work(request: str, _: Path) -> tuple[str, str]:
    tokenizer, corpus = map(Path, json.loads(request))
    library = plain(tokenizer)
    special = [token.content for token in library.get_added_tokens_decoder().values()]
    try:
        fast = FastTokens(tokenizer)
    except Exception as error:  # gigatoken raises RuntimeError, ValueError and others for what it does not know
        reason = str(error).partition("\n")[0]
        return f"gigatoken does not know the tokenizer ({reason:.200})", ""
    tokens = [library.decode([number], skip_special_tokens=False) for number in range(size(library))]
    choice = compare(BothEncoders(LibraryTokens(library), fast), tokens, special, sample_of(corpus))
    return choice.reason, choice.excluded


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "true"  # no other process of the stage is at work
    reply(work)
