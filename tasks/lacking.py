"""Artifacts that Flyte's cache has and whose files are gone: made again only when they are needed.

A deleted checkpoint would otherwise cost its training again, though the model that was made of it is there. An artifact
is *needless* if one that is there, or that is needless itself, was made from it. Of one execution, in this process.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_again: dict[str, Callable[[], object]] = {}  # place -> what makes it again
_made: dict[str, set[str]] = defaultdict(set)  # digest -> digests of what was made from it
_there: set[str] = set()  # digests
_tolerated = ContextVar("_tolerated", default=False)


@contextmanager
def tolerated() -> Iterator[None]:
    """Artifacts are read in the body whether or not their files are there."""
    before = _tolerated.set(True)
    try:
        yield
    finally:
        _tolerated.reset(before)


def may_lack(place: str) -> bool:
    """Whether an artifact without files is no error there."""
    return _tolerated.get() or place in _again


def note(place: str, again: Callable[[], object]) -> None:
    """The files of an artifact are gone, and `again` makes them."""
    _again[place] = again


def is_lacking(place: str) -> bool:
    return place in _again


def restore(place: str) -> bool:
    """Make the files again if they are gone; whether they were."""
    again = _again.pop(place, None)
    if again:
        again()
    return again is not None


def made(digest: str, of: Iterable[str], there: bool) -> None:
    """An artifact of this execution was made `of` these, and its files are `there` or not."""
    for parent in of:
        _made[parent].add(digest)
    if there:
        _there.add(digest)


def is_needless(digest: str) -> bool:
    seen, children = {digest}, [*_made.get(digest, ())]  # equal contents may be made from each other
    while children:
        child = children.pop()
        if child in _there and child != digest:
            return True
        if child not in seen:
            seen.add(child)
            children += _made.get(child, ())
    return False
