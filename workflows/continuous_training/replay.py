"""Divide a run of continuous training between the new text and the replayed text of earlier runs.

New text is read `grow.epochs` times, each of its sources by its size. Replayed text gets `grow.replay` of the tokens:
its named sources by their weights over all earlier runs, each spread over these by size, so that a run that brought
little of a source does not repeat it more often than others did. Of earlier sources that the recipe does not name any
more, each has its share by size, and the weights divide the rest.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

from baton.tasks.data.spec import CorpusSpec

Tokens = Mapping[str, int]  # of one data set by source; "" if its corpus has a single one
Shares = dict[str, float]


def source_weights(corpus: CorpusSpec) -> dict[str, float]:
    """The weights of the named sources; none: by size."""
    return {name: source.weight for name, source in corpus.sources.items() if source.weight is not None}


def summed(tokens: Sequence[Tokens]) -> Tokens:
    """The tokens of several data sets by source."""
    return {name: sum(each.get(name, 0) for each in tokens) for name in dict.fromkeys(chain.from_iterable(tokens))}


def unweighted(old: Sequence[Tokens], weights: Mapping[str, float]) -> list[str]:
    """The replayed sources that have no weight although others have one, in words."""
    left = {name for tokens in old for name, size in tokens.items() if size} - weights.keys()
    return [repr(name) if name else "text without a source's name" for name in sorted(left)] if weights else []


def blend(new: Tokens, old: Sequence[Tokens], replay: float, weights: Mapping[str, float]) -> list[Shares]:
    """The share of each source of each data set in all tokens, the old ones' before the new one's. If there is nothing
    to replay, or nothing new, the other gets everything."""
    sizes = {name: size for name, size in sorted(summed(old).items()) if size}
    share = 0.0 if not sizes else 1.0 if not sum(new.values()) else replay
    named = weights.keys() & sizes.keys()
    total = sum(weights[name] for name in named)
    by_weight = sum(sizes[name] for name in named) / max(1, sum(sizes.values()))
    of_source = {
        name: share * (by_weight * (weights[name] / total) if name in named else size / sum(sizes.values()))
        for name, size in sizes.items()
    }
    return [
        *({name: of_source[name] * size / sizes[name] for name, size in tokens.items() if size} for tokens in old),
        {name: (1 - share) * size / sum(new.values()) for name, size in new.items() if size},
    ]
