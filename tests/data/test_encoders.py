"""gigatoken encodes a corpus only if its ids are those of the tokenizers library."""

import random
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from baton.tasks.core.manifest import write_manifest
from baton.tasks.data import compare_tokens, encoders
from baton.tasks.data import shards as shards_engine
from baton.tasks.data.compare_tokens import PIECES, BothEncoders, compare, hazards, sample_of
from baton.tasks.data.documents import SPLITS, SplitWriter, document
from baton.tasks.data.encode import DocumentEncoder
from baton.tasks.data.encoders import Choice, FastTokens, Ids, Lengths, LibraryTokens, choose
from baton.tasks.models.tokenizers import plain
from tests.data.by_hand import digest, new_job

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
ENDS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + ENDS
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + ENDS
)
DEEPSEEK = (  # DeepSeek's file has line ends where the others have escapes
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
FAMILIES: dict[str, tuple[str, ...]] = {
    "gpt2": (),
    "llama3": (LLAMA3,),
    "qwen2": (LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),),
    "o200k": (O200K,),
    "deepseek": DEEPSEEK,
}
SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]
NEWER = ("a\U000105d2\u0307b", "\U00011382\U000113c9")  # NFC composes them since Unicode 16

Folders = Callable[[str], Path]


def family(name: str, text: Sequence[str]) -> Tokenizer:
    """Train a tokenizer with the pre-tokenizer and normalizer of a family on this text."""
    made = Tokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in FAMILIES[name]]
    made.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    if splits:
        made.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(False, use_regex=False)])
    if name == "qwen2":
        made.normalizer = normalizers.NFC()
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=3000, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(text, trainer)
    made.add_tokens(["<tool>"])  # not special, so it is recognized in a corpus
    return made


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A function that returns the folder of a family's tokenizer."""
    place = tmp_path_factory.mktemp("families")
    text = [path.read_text() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[::8]]

    def made(name: str) -> Path:
        folder = place / name
        if not folder.exists():
            folder.mkdir()
            family(name, text).save(str(folder / "tokenizer.json"))
        return folder

    return made


def pair(folder: Path) -> BothEncoders:
    return BothEncoders(LibraryTokens(plain(folder)), FastTokens(folder))


def texts(*each: str) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(each, pa.string())])


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_of_any_texts_are_the_librarys(folders: Folders, name: str) -> None:
    both = pair(folders(name))
    pieces = st.lists(st.sampled_from([*PIECES, *SPECIAL, "<tool>"]) | st.text(max_size=5), max_size=40).map("".join)

    @given(st.lists(pieces, max_size=20))
    @settings(max_examples=100, deadline=None)
    def holds(some: list[str]) -> None:
        assert both.equal(texts(*some))

    holds()


def test_an_added_token_that_a_chat_template_has_is_text_in_both(folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folders("gpt2") / "tokenizer.json").read_bytes())
    some = texts("a<tool>b")
    known = plain(tmp_path).token_to_id("<tool>")
    assert known in pair(tmp_path).fast(some)[0]
    (tmp_path / "chat_template.jinja").write_text("<tool>{{ messages[0].content }}")
    assert known not in pair(tmp_path).fast(some)[0] and pair(tmp_path).equal(some)


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_ids_of_100_000_texts_are_the_librarys(folders: Folders, name: str) -> None:
    both, chance = pair(folders(name)), random.Random(name)
    choice = compare(both, [], SPECIAL, iter(()))
    letters = [chr(each) for each in range(0x12000) if chr(each).isprintable()]
    compared = 0
    while compared < 100_000:
        alphabet = [*PIECES, *SPECIAL, "<tool>", *chance.choices(letters, k=300)]
        some = texts(*("".join(chance.choices(alphabet, k=chance.randint(1, 60))) for _ in range(1_000)))
        some = some.filter(pc.invert(choice.is_excluded(some)))
        assert both.equal(some)
        compared += len(some)


@pytest.fixture
def few_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare a few characters instead of all of Unicode, which takes ten seconds."""
    monkeypatch.setattr(compare_tokens, "ASSIGNED", (*range(0x1000), *range(0x105C0, 0x10600)))


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_used_for_the_tokenizers_of_the_large_families(folders: Folders, name: str) -> None:
    choice = compare(pair(folders(name)), [], SPECIAL, iter(()))
    assert not choice.reason
    found = choice.excluded.removeprefix("[").removesuffix(f"{compare_tokens.unknown()}]")
    assert bool(found) == (name == "qwen2")  # the libraries use Unicode tables of different years


@pytest.mark.usefixtures("few_characters")
def test_text_with_a_character_that_differs_is_left_to_the_library(folders: Folders) -> None:
    both = pair(folders("qwen2"))
    assert not any(both.equal(texts(text)) for text in NEWER)
    choice = compare(both, [], SPECIAL, iter(()))
    encoder = DocumentEncoder(folders("qwen2"), 3001, 0, (), choice)
    by_library = DocumentEncoder(folders("qwen2"), 3001, 0, (), Choice("asked for"))
    for some in (*(texts("plain", text) for text in NEWER), texts("plain", "caf\u00e9")):
        for found, expected in zip(encoder.encode(some), by_library.encode(some), strict=True):
            assert found.tolist() == expected.tolist()
    assert "a character is rare" in choice.text()


def altered(both: BothEncoders, when: Callable[[str], bool]) -> BothEncoders:
    """Return a pair whose fast encoder gets one id wrong in some texts."""

    def fast(some: pa.ChunkedArray) -> tuple[Ids, Lengths]:
        ids, lengths = both.fast(some)
        return ids + np.repeat([np.uint32(when(text)) for text in some.to_pylist()], lengths), lengths

    return BothEncoders(both.library, fast)


@pytest.mark.usefixtures("few_characters")
@pytest.mark.parametrize(
    ("errs", "reason"),
    [
        pytest.param(lambda text: "q" in text, r"'aq q\nq", id="a letter"),
        pytest.param(lambda text: "<|im_end|>" in text, "'<|im_end|>'", id="a special token"),
        pytest.param(lambda text: len(text) > 60_000, "70,000 characters", id="long text"),
        pytest.param(lambda text: "of the corpus" in text, "'a text of the corpus'", id="the corpus"),
    ],
)
def test_an_encoder_that_errs_is_not_used(folders: Folders, errs: Callable[[str], bool], reason: str) -> None:
    sample = iter([texts("another"), texts("another", "a text of the corpus")])
    choice = compare(altered(pair(folders("gpt2")), errs), [], SPECIAL, sample)
    assert reason in choice.reason
    assert "tokenizers library" in choice.text()


@pytest.mark.usefixtures("few_characters")
def test_a_character_around_which_it_errs_is_excluded(folders: Folders) -> None:
    both = altered(pair(folders("gpt2")), lambda text: "\u0e01" in text)
    assert compare(both, [], SPECIAL, iter(())).excluded == f"[\u0e01{compare_tokens.unknown()}]"
    both = altered(pair(folders("gpt2")), lambda text: "\u0e01\u0e02" in text)
    excluded = compare(both, [], SPECIAL, iter(())).excluded.removesuffix(f"{compare_tokens.unknown()}]")
    assert len(excluded) == 1 + 64  # no single character differs, so the entire range is excluded


def test_words_that_fill_its_cache_change_nothing(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "CACHE", 0)
    both = pair(folders("gpt2"))
    some = texts(*hazards(SPECIAL))
    assert all(both.equal(some) for _ in range(3))


def write(folder: Path, documents: Sequence[str]) -> Path:
    folder.mkdir()
    for split in SPLITS:
        writer = SplitWriter(folder, split)
        for number, text in enumerate(documents):
            writer.add(document(f"{number}", text))
        writer.close()
    size = sum(len(text.encode()) for text in documents)
    write_manifest(folder, "corpus", {"bytes": size, "held_out_bytes": size, "documents": len(documents)})
    return folder


@pytest.mark.long
def test_a_corpus_has_the_same_shards_by_either(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = Path(sysconfig.get_path("stdlib"), "argparse.py").read_text()
    corpus = write(tmp_path / "corpus", [*(f"{number} {words}" for number in range(30)), "<|end|> <tool>", "", *NEWER])
    write_manifest(folders("qwen2"), "tokenizer", {"vocab_size": 3001, "eos_id": 0})
    made, said = [], []
    for worthwhile in (encoders.WORTHWHILE, 1_000):
        monkeypatch.setattr(encoders, "WORTHWHILE", worthwhile)
        job = new_job(tmp_path / f"{worthwhile}", "shards", {}, corpus=corpus, tokenizer=folders("qwen2"))
        monkeypatch.setenv("BATON_HOME", str(tmp_path / f"home-{worthwhile}"))
        shards_engine.work(job)
        made.append(digest(job.output))
        said.append((job.record / shards_engine.ENCODER).read_text())
    assert made[0] == made[1]
    assert "MB, and gigatoken is tried from 64 MB on" in said[0]
    assert "Encoded by gigatoken" in said[1]


def chosen(folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch, limit_s: float = 600.0) -> Choice:
    monkeypatch.setattr(encoders, "WORTHWHILE", 0)
    monkeypatch.setattr(encoders, "LIMIT_S", limit_s)
    return choose(folder, write(place / "corpus", ["a text"]))


def test_a_tokenizer_that_it_does_not_know_is_named(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    other.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\d+|\D"), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    (tmp_path / "other").mkdir()
    other.save(str(tmp_path / "other" / "tokenizer.json"))
    reason = chosen(tmp_path / "other", tmp_path, monkeypatch).reason
    assert "does not know the tokenizer" in reason
    assert r"\\d+|\\D" in reason


def test_a_comparison_that_fails_leaves_all_to_the_library(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = chosen(folders("gpt2"), tmp_path, monkeypatch, limit_s=0.01)
    assert choice.text() == (
        "Encoded by the tokenizers library: the comparison with gigatoken took longer than its limit, 0.01 s."
    )


def test_the_first_difference_ends_the_comparison(folders: Folders, tmp_path: Path) -> None:
    """gigatoken 0.10 also finds a `single_word` token within words."""
    made = Tokenizer.from_file(str(folders("gpt2") / "tokenizer.json"))
    made.add_tokens([AddedToken("stand_alone", single_word=True)])
    made.save(str(tmp_path / "tokenizer.json"))
    both, calls = pair(tmp_path), []
    counted = BothEncoders(lambda some: calls.append(len(some)) or both.library(some), both.fast)  # type: ignore[func-returns-value]
    choice = compare(counted, ["a", "b"], [*SPECIAL, "stand_alone"], iter(()))
    assert "gigatoken's ids differ for a text" in choice.reason and "stand_alone" in choice.reason
    assert len(calls) == 2  # tokens, and texts on which tokenizers often disagree; no Unicode characters


def test_of_several_texts_the_first_that_differs_is_found(folders: Folders) -> None:
    both = pair(folders("gpt2"))
    some = [*(f"text {number}" for number in range(50)), "wrong a", "", "wrong b"]
    assert both.first_different(texts(*some)) is None
    assert altered(both, lambda text: "wrong" in text).first_different(texts(*some)) == 50

    def longer(given: pa.ChunkedArray) -> tuple[Ids, Lengths]:
        return both.fast(texts(*(f"{text} and more" if "wrong" in text else text for text in given.to_pylist())))

    assert BothEncoders(both.library, longer).first_different(texts(*some)) == 50


def test_the_sample_is_of_row_groups_and_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_tokens, "SAMPLE", 2_500_000)
    corpus = write(tmp_path / "corpus", [f"{number} " + "word " * 20_000 for number in range(60)])
    sample: list[Any] = [each.to_pylist() for each in sample_of(corpus)]
    assert 2_500_000 <= sum(len(text) for texts in sample for text in texts) < 4_000_000
    assert sample == [each.to_pylist() for each in sample_of(corpus)]
