"""Make a folder completely or not at all."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.storage.durable import rename, sync_tree
from tasks.core.manifest import remove


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside `path`, which is renamed to `path` at the end, when everything in it is on the disk.
    If another process has made `path` meanwhile, that folder stays. An error removes the new folder; a killed process
    leaves it under a name that ends in `.partial`."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    remove(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
        sync_tree(partial)
        try:
            rename(partial, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    finally:
        remove(partial)
