"""Artifacts that Flyte's cache has and whose files are gone: recreated only when they are needed.

Otherwise a deleted checkpoint would be trained again even if the model made from it exists. An artifact is *needless*
if another one that exists, or is itself needless, was made from it. The state covers one execution in this process.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_again: dict[str, Callable[[], object]] = {}  # place -> what makes it again
_children: dict[str, set[str]] = defaultdict(set)  # digest -> digests of what was made from it
_existing: set[str] = set()  # digests
_tolerated = ContextVar("_tolerated", default=False)


@contextmanager
def tolerated() -> Iterator[None]:
    """In the body, artifacts may be read without their files."""
    before = _tolerated.set(True)
    try:
        yield
    finally:
        _tolerated.reset(before)


def may_lack(place: str) -> bool:
    """Return whether an artifact at this place may lack its files."""
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


def note_made(digest: str, parents: Iterable[str], exists: bool) -> None:
    """Note an artifact of this execution, what it was made from, and whether its files exist."""
    for parent in parents:
        _children[parent].add(digest)
    if exists:
        _existing.add(digest)


def is_needless(digest: str) -> bool:
    seen, children = {digest}, [*_children.get(digest, ())]  # equal contents may be made from each other
    while children:
        child = children.pop()
        if child in _existing and child != digest:
            return True
        if child not in seen:
            seen.add(child)
            children += _children.get(child, ())
    return False
