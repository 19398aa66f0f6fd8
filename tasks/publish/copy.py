"""Copy a model's files into the published directory."""

import errno
import os
import shutil
from pathlib import Path

from tasks.adapted import Model
from tasks.manifest import MANIFEST, RECORD, remove

CARD = "README.md"
LINK_BYTES = 1 << 20  # files of this size and more are linked: weights are never edited in place, a config may be

# links are an optimization: another disk, a file system without links, too many links
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK)


def copy_model(model: Model, output: Path) -> None:
    """Fill `output` with the model's files, large ones as hard links where possible; an adapter's with the weights of
    its base. The manifest, the record and an existing card are not copied."""
    remove(output)  # of an attempt that was killed
    for directory in dict.fromkeys((model.directory, model.weights)):
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory)
            if path.is_file() and name.parts[0] not in (MANIFEST, RECORD, CARD) and not (output / name).exists():
                (output / name).parent.mkdir(parents=True, exist_ok=True)
                _link_or_copy(path, output / name)


def _link_or_copy(source: Path, target: Path) -> None:
    if source.stat().st_size >= LINK_BYTES:
        try:
            os.link(source, target)
            return
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
    shutil.copyfile(source, target)
