"""Aggregate the rewards of several completions per prompt. Completions of one prompt are not independent, so standard
errors are over the prompts' means."""

from collections.abc import Sequence

from baton.infra.evaluated import chance_of_pass, known_mean
from baton.tasks.core.metric import Metric


def mean_reward(rewards: Sequence[Sequence[float | None]]) -> Metric | None:
    """Return the mean over prompts of the mean over each prompt's completions, or None if the reward applies to no
    completion."""
    means = [known_mean(completions) for completions in rewards]
    return Metric.mean(means) if any(mean is not None for mean in means) else None


def pass_at(k: int, rewards: Sequence[Sequence[float | None]]) -> Metric | None:
    """Return the probability that at least one of k completions passes: the unbiased estimator 1 − C(n−c, k) / C(n, k)
    for n completions of which c pass, averaged over prompts (Chen et al., Evaluating Large Language Models Trained on
    Code, 2021). Prompts with no completion that the reward applies to are left out, as in `mean_reward`; None if all
    are."""
    chances = [chance_of_pass(k, completions) for completions in rewards]
    return Metric.mean(chances, "share") if any(chance is not None for chance in chances) else None


def distinct(texts: Sequence[str]) -> Metric:
    """Return the fraction of distinct texts, ignoring white space; near 0 for a model that gives one answer to
    everything."""
    return Metric(len({" ".join(text.split()) for text in texts}) / len(texts), None, len(texts), "share")
