"""Preference pairs of a model's samples."""

from pathlib import Path

import pytest

from baton.tasks.core.manifest import ArtifactError
from baton.tasks.posttrain.methods.dpo.pairs import Pair, Pairs, ScoredCompletion, pair
from tests.posttrain.tiny import flip_a_bit

PROMPT = [1, 2, 3]
GOLD = ScoredCompletion([4, 0], reward=1.0)
GOOD, MIDDLING, BAD = (ScoredCompletion([token, 0], worth) for token, worth in ((5, 0.9), (6, 0.5), (7, -1.0)))
UNKNOWN = ScoredCompletion([8, 0], reward=None)
PAIRS = Pairs([Pair(PROMPT, [4, 0], [7, 0])], sampled=3, rewards={"right": 0.25})


def test_the_worst_sample_is_rejected_for_the_rows_own_completion() -> None:
    assert pair(PROMPT, [MIDDLING, BAD, GOOD], GOLD) == Pair(PROMPT, [4, 0], [7, 0])


def test_or_for_the_best_sample() -> None:
    assert pair(PROMPT, [MIDDLING, BAD, GOOD], None) == Pair(PROMPT, [5, 0], [7, 0])


@pytest.mark.parametrize(
    ("samples", "gold"),
    [
        ([ScoredCompletion([9, 0], reward=1.0)], GOLD),  # as good as the row's own completion
        ([BAD], ScoredCompletion([4, 0], reward=None)),  # the row's own completion has no reward
        ([UNKNOWN], GOLD),
        ([MIDDLING, MIDDLING], None),
        ([MIDDLING, UNKNOWN], None),
        ([], None),
    ],
)
def test_where_nothing_is_known_to_be_worse_there_is_no_pair(
    samples: list[ScoredCompletion], gold: ScoredCompletion | None
) -> None:
    assert pair(PROMPT, samples, gold) is None


def test_what_no_reward_applies_to_is_skipped() -> None:
    assert pair(PROMPT, [UNKNOWN, BAD, MIDDLING], None) == Pair(PROMPT, [6, 0], [7, 0])


def test_pairs_are_read_back_as_they_were_saved(tmp_path: Path) -> None:
    PAIRS.save(tmp_path / "pairs")

    assert Pairs.load(tmp_path / "pairs") == PAIRS
    assert PAIRS.no_pair == 2


def test_pairs_that_are_not_what_was_saved_are_refused(tmp_path: Path) -> None:
    PAIRS.save(tmp_path / "pairs")
    flip_a_bit(tmp_path / "pairs" / "pairs.json")

    with pytest.raises(ArtifactError, match=r"pairs\.json was changed"):
        Pairs.load(tmp_path / "pairs")
