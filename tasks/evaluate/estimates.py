"""What the rewards of several completions of each prompt come to. Prompts are the independent items: the completions
of one prompt are not, so standard errors are over the prompts' means."""

from collections.abc import Sequence
from math import comb
from statistics import fmean

from tasks.metric import Metric

PASSES = 1.0  # a reward of this or more


def mean_reward(rewards: Sequence[Sequence[float | None]]) -> Metric | None:
    """The mean over prompts of the mean over each one's completions; None where the reward applies to none."""
    of_prompts = [reward_of(each) for each in rewards]
    return Metric.mean(of_prompts) if any(each is not None for each in of_prompts) else None


def reward_of(completions: Sequence[float | None]) -> float | None:
    """A prompt's: the mean over its completions that the reward applies to."""
    known = [each for each in completions if each is not None]
    return fmean(known) if known else None


def pass_at(k: int, rewards: Sequence[Sequence[float | None]]) -> Metric:
    """The chance that at least one of k completions passes: the unbiased estimator 1 − C(n−c, k) / C(n, k) of n
    completions of which c pass, averaged over prompts (Chen et al., Evaluating Large Language Models Trained on Code,
    2021)."""
    return Metric.mean([chance_of_pass(k, each) for each in rewards], "share")


def chance_of_pass(k: int, completions: Sequence[float | None]) -> float:
    count = len(completions)
    passing = sum(each is not None and each >= PASSES for each in completions)
    return 1 - comb(count - passing, k) / comb(count, k)


def distinct(texts: Sequence[str]) -> Metric:
    """The share of different texts among all of them, white space aside. A model that gives one answer to everything
    has nearly none."""
    return Metric(len({" ".join(text.split()) for text in texts}) / len(texts), None, len(texts), "share")
