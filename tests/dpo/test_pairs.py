"""Preference pairs out of the model's own samples."""

from pathlib import Path

import pytest

from tasks.dpo.pairs import Pair, Pairs, make_pairs
from tasks.manifest import ArtifactError
from tasks.posttrain.examples import Example
from tasks.serve.engine import Completion
from tasks.statements.prompt import Prompt
from tests.posttrain.tiny import flip_a_bit

PROMPT = Prompt("id", "module.py", "def add(total, step):\n    ", "return total + step", frozenset())
EXAMPLE = Example(PROMPT, prompt_ids=[1, 2, 3], statement_ids=[4, 5, 0])


def completion(text: str, *token_ids: int) -> Completion:
    return Completion(text, token_ids, logprobs=(-1.0,) * len(token_ids), ended=True)


def test_what_fails_a_check_is_rejected_as_the_tokens_that_were_sampled() -> None:
    found = make_pairs([EXAMPLE], [completion("return totl", 9, 8, 0)])

    assert found == Pairs([Pair([1, 2, 3], [4, 5, 0], [9, 8, 0])], sampled=1, passed=0)


def test_what_passes_makes_no_pair_and_is_counted() -> None:
    found = make_pairs([EXAMPLE, EXAMPLE], [completion("return step", 7, 0), completion("pass", 6, 0)])

    assert found == Pairs([Pair([1, 2, 3], [4, 5, 0], [6, 0])], sampled=2, passed=1)


def test_pairs_are_read_back_as_they_were_saved(tmp_path: Path) -> None:
    found = make_pairs([EXAMPLE], [completion("pass", 6, 0)])

    found.save(tmp_path / "pairs")

    assert Pairs.load(tmp_path / "pairs") == found


def test_pairs_that_are_not_what_was_saved_are_refused(tmp_path: Path) -> None:
    make_pairs([EXAMPLE], [completion("pass", 6, 0)]).save(tmp_path / "pairs")
    flip_a_bit(tmp_path / "pairs" / "pairs.json")

    with pytest.raises(ArtifactError, match=r"pairs\.json was changed"):
        Pairs.load(tmp_path / "pairs")
