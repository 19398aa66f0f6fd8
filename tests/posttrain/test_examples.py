"""Next-statement examples as token ids."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tasks.posttrain.examples import encode, examples
from tasks.posttrain.spec import PostTrainSpec
from tasks.statements.check import check
from tests.posttrain.tiny import tiny_corpus, tiny_model

SPEC = PostTrainSpec(max_prompt_tokens=120, max_new_tokens=40)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("tiny") / "corpus")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        tiny_model(tmp_path_factory.mktemp("tiny") / "model")
    )
    return loaded


def test_an_example_is_what_the_model_will_see_and_what_it_should_say(
    corpus: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    for example in examples(corpus, tokenizer, SPEC, 50):
        assert tokenizer.decode(example.prompt_ids) == example.prompt.text
        assert tokenizer.decode(example.statement_ids) == example.prompt.reference + "<|endoftext|>"
        assert check(example.prompt, example.prompt.reference).parses


def test_prompt_and_statement_meet_on_a_token_boundary(corpus: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """With a tokenizer that splits newlines and indentation off, apart and together is the same."""
    for example in examples(corpus, tokenizer, SPEC, 50):
        together = encode(tokenizer, example.prompt.text + example.prompt.reference)
        assert example.prompt_ids + example.statement_ids == [*together, tokenizer.eos_token_id]


def test_every_example_is_within_the_limits_and_asked_once(corpus: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    found = examples(corpus, tokenizer, SPEC, 10_000)

    assert all(len(one.prompt_ids) <= 120 and len(one.statement_ids) <= 40 for one in found)
    assert len({one.prompt.text for one in found}) == len(found) > 100


def test_the_seed_decides_which_and_in_what_order(corpus: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    first, again, other = (
        [one.prompt.id for one in examples(corpus, tokenizer, SPEC.model_copy(update={"seed": seed}), 50)]
        for seed in (1, 1, 2)
    )

    assert first == again != other
