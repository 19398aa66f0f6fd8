"""Import large libraries in less time."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def large_imports() -> Iterator[None]:
    """Pause garbage collection while libraries are imported, and leave what they create out of later collections.

    torch, vLLM and TRL create 1.5 million objects, none of which is garbage. Otherwise the collector examines them many
    times: for a quarter of the time of the imports, in full collections later, and for a second when the process exits.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()
