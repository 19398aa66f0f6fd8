"""The tokenizer is lossless, and the tokens of a prompt are a prefix of those of the full text."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config

from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import write_manifest
from baton.tasks.data.documents import SplitWriter, read_documents
from baton.tasks.data.tokenizer import in_sample, work
from tests.data.by_hand import digest, facts, new_job

code_lines = st.text(alphabet="abz_ \t(.)=+0123é#'", max_size=20)
indents = st.text(alphabet=" \t", max_size=12)
statements = st.text(alphabet="abz_.(1)= é\n \t", min_size=1).filter(lambda text: not text[0].isspace())


@pytest.fixture(scope="module")
def loaded(tokenizer: Path) -> Any:
    return AutoTokenizer.from_pretrained(tokenizer)


@pytest.fixture(scope="module")
def of_lines(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Any:
    spec = {"vocab_size": 600, "pattern": "lines"}
    job = new_job(tmp_path_factory.mktemp("of_lines"), "tokenizer", spec, corpus=corpus)
    work(job)
    return AutoTokenizer.from_pretrained(job.output)


def copied(directory: Path, corpus: Path, existing: str) -> Path:
    job = new_job(directory, "tokenizer", {"existing": existing}, corpus=corpus)
    work(job)
    return job.output


@given(text=st.text())
@settings(max_examples=300, deadline=None)
def test_decoding_gives_back_any_text(loaded: Any, of_lines: Any, text: str) -> None:
    for each in (loaded, of_lines):
        assert each.decode(each(text).input_ids) == text


@given(before=st.lists(code_lines), indent=indents, statement=statements)
@settings(max_examples=500, deadline=None)
def test_a_prompts_tokens_are_a_prefix(
    loaded: Any, of_lines: Any, before: list[str], indent: str, statement: str
) -> None:
    whole = "".join(line + "\n" for line in ["def f():", *before]) + indent
    for tokenizer, prompt in ((of_lines, whole), (loaded, whole[:-1] if indent else whole)):
        start = tokenizer(prompt).input_ids
        assert tokenizer(whole + statement).input_ids[: len(start)] == start


def pieces(tokenizer: Any) -> list[str]:
    cut = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("if x:\n\n        self._read_all(12345)\n")
    return [piece for piece, _ in cut]


def test_lines_indentation_words_and_numbers_stand_apart(of_lines: Any) -> None:
    cut = ["if", "Ġx", ":", "ĊĊ", "ĠĠĠĠĠĠĠĠ", "self", "._", "read", "_all", "(", "123", "45", ")", "Ċ"]
    assert pieces(of_lines) == cut


def test_text_is_cut_as_llama_3_cuts_it(loaded: Any) -> None:
    cut = ["if", "Ġx", ":ĊĊ", "ĠĠĠĠĠĠĠ", "Ġself", "._", "read", "_all", "(", "123", "45", ")Ċ"]
    assert pieces(loaded) == cut


def test_the_vocabulary_is_as_large_as_asked_with_the_special_tokens(tokenizer: Path, loaded: Any) -> None:
    assert facts(tokenizer) == {"vocab_size": 600, "eos_id": 0, "pad_id": 1}
    assert len(loaded) == 600
    assert (loaded.eos_token, loaded.pad_token) == ("<|endoftext|>", "<|pad|>")
    assert set(loaded.all_special_tokens) == {"<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>"}
    for token in ("<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>"):
        assert loaded(token).input_ids == [loaded.convert_tokens_to_ids(token)]


def test_the_chat_template_is_chatml(loaded: Any) -> None:
    prompt = loaded.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_model_beside_it_does_not_change_it(tokenizer: Path, loaded: Any, tmp_path: Path) -> None:
    """AutoTokenizer also reads config.json, and a model family has its own tokenizer class."""
    shutil.copytree(tokenizer, tmp_path / "model")
    Qwen3Config(vocab_size=600).save_pretrained(tmp_path / "model")
    beside = AutoTokenizer.from_pretrained(tmp_path / "model")
    text = "def f(x):\n    return x  +   1\n\n\n\tclass A: pass"
    assert beside(text).input_ids == loaded(text).input_ids
    assert beside.decode(beside(text).input_ids) == text


def test_training_again_gives_the_same_digest(tokenizer: Path, corpus: Path, tmp_path: Path) -> None:
    job = new_job(tmp_path / "again", "tokenizer", {"vocab_size": 600}, corpus=corpus)
    work(job)
    assert digest(job.output) == digest(tokenizer)


def test_a_sample_is_as_large_as_asked_and_part_of_every_larger_one(corpus: Path, tmp_path: Path) -> None:
    documents = list(read_documents(corpus, "train"))
    half = [item.id for item in documents if in_sample(item.id, 0.5)]
    assert {item.id for item in documents if in_sample(item.id, 0.3)} < set(half)
    assert 0.3 < len(half) / len(documents) < 0.7
    assert all(in_sample(item.id, 1.0) for item in documents)


def test_text_outside_the_sample_does_not_matter(corpus: Path, tmp_path: Path) -> None:
    spec = {"vocab_size": 600, "sample_mb": facts(corpus)["bytes"] / 2e6}
    sampled = new_job(tmp_path / "sampled", "tokenizer", spec, corpus=corpus)
    work(sampled)

    only = tmp_path / "only"
    only.mkdir()
    writer = SplitWriter(only, "train")
    for item in read_documents(corpus, "train"):
        if in_sample(item.id, 0.5):
            writer.add(item)
    writer.close()
    write_manifest(only, "corpus", {"bytes": writer.bytes, "documents": writer.documents})
    alone = new_job(tmp_path / "alone", "tokenizer", {"vocab_size": 600}, corpus=only)
    work(alone)
    assert digest(alone.output) == digest(sampled.output)


def test_more_entries_than_the_text_has_pairs_for_is_refused(corpus: Path, tmp_path: Path) -> None:
    job = new_job(tmp_path, "tokenizer", {"vocab_size": 500_000}, corpus=corpus)
    with pytest.raises(StageError, match=r"the corpus only has pairs for \d+ entries"):
        work(job)


def test_an_existing_tokenizer_is_copied(tokenizer: Path, loaded: Any, corpus: Path, tmp_path: Path) -> None:
    copy = copied(tmp_path / "job", corpus, str(tokenizer))
    assert facts(copy) == facts(tokenizer)
    assert AutoTokenizer.from_pretrained(copy)("x = 1\n").input_ids == loaded("x = 1\n").input_ids


def test_where_an_existing_tokenizer_lies_does_not_matter(tokenizer: Path, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(tokenizer, tmp_path / "elsewhere")
    here = copied(tmp_path / "here", corpus, str(tokenizer))
    there = copied(tmp_path / "there", corpus, str(tmp_path / "elsewhere"))
    assert digest(here) == digest(there)


def save(directory: Path, **special: str) -> str:
    vocabulary = {"<unk>": 0, "<end>": 1, "a": 2}
    backend = FastTokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", **special).save_pretrained(directory)
    return str(directory)


def test_without_a_pad_token_the_end_of_text_pads(corpus: Path, tmp_path: Path) -> None:
    copy = copied(tmp_path / "job", corpus, save(tmp_path / "theirs", eos_token="<end>"))
    assert facts(copy) == {"vocab_size": 3, "eos_id": 1, "pad_id": 1}
    assert AutoTokenizer.from_pretrained(copy).pad_token == "<end>"


def test_without_an_end_of_text_token_it_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="no end-of-text token"):
        copied(tmp_path / "job", corpus, save(tmp_path / "theirs"))


def test_one_to_which_an_unknown_character_is_the_end_of_text_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="does not know becomes the token that ends a document"):
        copied(tmp_path / "job", corpus, save(tmp_path / "theirs", eos_token="<unk>"))


def test_one_that_cannot_be_had_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="existing='nobody/nothing-of-this-name'"):
        copied(tmp_path / "job", corpus, "nobody/nothing-of-this-name")
