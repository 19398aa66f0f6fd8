"""Garbage collection while an engine imports its libraries."""

import gc
from collections.abc import Iterator

import pytest

from baton.infra.process.imports import large_imports


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Return this process's objects to the collector."""
    yield
    gc.unfreeze()


def test_nothing_is_collected_while_libraries_are_imported() -> None:
    with large_imports():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_was_imported_is_left_out_of_later_collections() -> None:
    before = gc.get_freeze_count()
    with large_imports():
        library = [[number] for number in range(1000)]
    assert gc.get_freeze_count() >= before + len(library)


def test_garbage_is_collected_again_after_a_failed_import() -> None:
    with pytest.raises(ModuleNotFoundError), large_imports():
        __import__("no_such_library")
    assert gc.isenabled()
