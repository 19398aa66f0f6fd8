"""Continuous training: steps, shares of old and new text, and the recipe's requirements."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.data.artifact import Corpus, TokenizedCorpus
from baton.tasks.pretrain.spec import PretrainSpec
from baton.workflows.checks.table import checked
from baton.workflows.continuous_training.calls import Replayed
from baton.workflows.continuous_training.generations import data_sets, remaining
from baton.workflows.continuous_training.recipe import ContinuousRecipe, GrowSpec
from baton.workflows.continuous_training.replay import blend, unweighted
from baton.workflows.recipe.error import RecipeError
from tests.shipped import shipped


def recipe() -> dict[str, Any]:
    return shipped("continuous.yaml")


def test_the_new_text_is_read_as_often_as_asked_beside_the_replay() -> None:
    assert GrowSpec(replay=0.5, epochs=2).steps(new_tokens=10_000, tokens_per_step=1_000) == 40


def test_the_steps_keep_within_their_bounds() -> None:
    bounded = GrowSpec(min_steps=5, max_steps=50)
    assert (bounded.steps(1, 1_000), bounded.steps(10**9, 1_000)) == (5, 50)


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**12), max_size=20), st.floats(0, 0.99))
def test_the_shares_make_one_whole_and_go_by_size(new: int, old: list[int], replay: float) -> None:
    shares = [of_data.get("", 0.0) for of_data in blend({"": new}, [{"": size} for size in old], replay, {})]
    assert len(shares) == len(old) + 1
    if not new and not sum(old):
        return
    assert sum(shares) == pytest.approx(1)
    if new and sum(old):
        assert shares[-1] == pytest.approx(1 - replay)
    pairs = sorted(zip(old, shares[:-1], strict=True))
    assert all(a <= b for (_, a), (_, b) in pairwise(pairs))


def test_replayed_sources_share_by_weight_over_all_days_and_new_ones_by_size() -> None:
    days = [{"books": 100, "web": 300}, {"books": 0, "web": 100}, {"books": 100, "web": 0}]
    *old, new = blend({"books": 10, "web": 90}, days, 0.5, {"books": 3.0, "web": 1.0})
    assert new == pytest.approx({"books": 0.05, "web": 0.45})
    assert old == [
        pytest.approx(each) for each in ({"books": 0.1875, "web": 0.09375}, {"web": 0.03125}, {"books": 0.1875})
    ]


def test_a_source_that_was_renamed_is_replayed_by_its_size_and_the_others_keep_their_weights() -> None:
    days, weights = [{"web": 600, "code": 200}, {"old": 200}], {"code": 3.0, "new": 5.0, "web": 1.0}
    first, second, _ = blend({"new": 100}, days, 0.5, weights)
    assert first == pytest.approx({"web": 0.1, "code": 0.3}) and second == pytest.approx({"old": 0.1})
    assert unweighted([*days, {"": 1, "gone": 0}], weights) == ["text without a source's name", "'old'"]
    assert unweighted(days, {}) == []


def without_files(kind: type[Any], facts: dict[str, Any]) -> Any:
    return kind.model_construct(**facts)


@pytest.mark.parametrize(
    ("gone", "tokens"),
    [
        ({}, {"books": 600, "web": 400}),
        ({"train-web": 1}, {"books": 600, "web": 300}),
        ({"held_out": 1}, {"books": 600, "web": 400}),
        ({"train-books": 6, "train-web": 4}, {"books": 0, "web": 0}),
    ],
)
def test_a_corpus_is_replayed_without_what_is_gone_by_facts_alone(gone: dict[str, int], tokens: dict[str, int]) -> None:
    corpus = {"digest": "old", "documents": 10, "sources": {"books": {"documents": 6}, "web": {"documents": 4}}}
    shards = {"tokens": 1000, "sources": {"books": 600, "web": 400}}
    assert remaining(without_files(Corpus, corpus), without_files(TokenizedCorpus, shards), gone) == tokens


def texts(numbers: Iterable[int]) -> list[Replayed]:
    return [Replayed(number, number + 1, {"": 1}, whole=True) for number in numbers]


@given(st.integers(2, 9), st.sets(st.integers(0, 80)))
def test_each_night_has_at_most_one_new_data_set(size: int, left: set[int]) -> None:
    before: set[tuple[int, ...]] = set()
    for accepted in range(1, 80):
        old = texts(sorted(number for number in left if number < accepted))
        sets = data_sets(old, accepted, size)
        assert [text.number for each in sets for text in each] == [text.number for text in old]
        assert len(sets) <= accepted // size + size
        now = {tuple(text.number for text in each) for each in sets}
        assert len([each for each in now - before if len(each) > 1]) <= 1
        before = now


def test_text_with_and_without_named_sources_is_not_put_together() -> None:
    old = texts(range(5))
    old[1] = replace(old[1], tokens={"web": 1})
    assert [[text.number for text in each] for each in data_sets(old, 5, 4)] == [[0], [1], [2, 3], [4]]


def test_the_learning_rate_is_warmed_up_again_from_where_it_ended() -> None:
    first = PretrainSpec(steps=1000).resolved(4096, continued=False)
    spec = GrowSpec(lr=1e-3, min_lr=2e-4, warmup=0.1).pretraining(
        first, {"": 409_600}, [{"": 409_600}], {}, warm_from=3e-4
    )
    assert (spec.steps, spec.optimizer.warmup_steps) == (200, 20)
    assert (spec.optimizer.warmup_from, spec.optimizer.lr, spec.optimizer.min_lr) == (3e-4, 1e-3, 2e-4)
    assert spec.problems() == []


@given(st.integers(1, 10**7), st.floats(0, 0.99), st.integers(1, 100))
def test_every_run_on_new_text_is_a_right_spec(new: int, warmup: float, fewest: int) -> None:
    grow = GrowSpec(warmup=warmup, min_steps=fewest)
    first = PretrainSpec().resolved(4096, continued=False)
    assert grow.pretraining(first, {"": new}, [{"": 10**6}], {}, warm_from=3e-4).problems() == []


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"publish": None}, "publish", "write `publish: {}`"),
        ({"evaluate": None}, "evaluate", "write `evaluate: {}`"),
        ({"more_corpora": [{}]}, "more_corpora", "not possible in continuous training"),
        ({"publish": {"alias": "champion"}}, "publish.alias", "the promotion moves the alias"),
        ({"publish": {"hub": "team/model"}}, "publish.hub", "a candidate is published before it is compared"),
        ({"post_training": []}, "refresh", "at least one stage"),
        ({"refresh": {"name": "baton-continuous", "promotion": {}}}, "refresh.name", "another name"),
        ({"grow": {"lr": 1e-4, "min_lr": 1e-3}}, "grow.min_lr", "at most lr"),
        ({"grow": {"fewest_steps": 2}}, "grow.fewest_steps", "is called min_steps now"),
        (
            {"post_training": [{"sft": {"data": "a", "micro_batch_size": 2}}]},
            "post_training.0.sft.micro_batch_size",
            "is called layout.micro_batch now",
        ),
        ({"grow": {"max_steps": 2}}, "grow.max_steps", "at least min_steps"),
        ({"grow": {"replay": 1}}, "grow.replay", "less than 1"),
        ({"schedule": {"continue_training": "every night"}}, "schedule.continue_training", "cron expression"),
        ({"schedule": {"refresh_rl": "0 0 30 2 *"}}, "schedule.refresh_rl", "dates that exist"),
        ({"schedule": {"refresh_rl": "R 2 * * *"}}, "schedule.refresh_rl", "cron expression"),
        ({"promotion": {"metric": "sums.right"}}, "promotion.metric", "statements.all_checks"),
        ({"promotion": {"regressions": {"statements.distinct": 0.1}}}, "promotion.regressions", "one of old.bits"),
        ({"evaluate": {"tasks": {"lm_eval": ["piqa"]}}}, "promotion.metric", "one of tasks.<task>.<metric>"),
        ({"schedule": {"notify": ["me"]}}, "schedule.notify", "email"),
    ],
)
def test_a_recipe_that_cannot_go_on_is_answered(change: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        checked(ContinuousRecipe.model_validate(recipe() | change))
    assert any(problem.path == path and words in problem.allowed for problem in caught.value.problems), caught.value
