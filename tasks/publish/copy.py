"""The model's files, taken over into the published directory."""

import errno
import os
import shutil
from pathlib import Path

from tasks.manifest import MANIFEST, RECORD, remove

CARD = "README.md"
LINK_BYTES = 1 << 20  # from this size on a file is linked: weights are never edited in place, a config may be

# a link is a saving, not a need: other disk, file system without links, too many of them
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK)


def copy_model(model: Path, output: Path) -> None:
    """Fill `output` anew with the model's files, large ones as hard links where the disk allows it. The
    manifest, the record and a card that was there stay behind."""
    remove(output)  # half of a try that was killed
    for path in sorted(model.rglob("*")):
        name = path.relative_to(model)
        if path.is_file() and name.parts[0] not in (MANIFEST, RECORD, CARD):
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            _take(path, output / name)


def _take(source: Path, target: Path) -> None:
    if source.stat().st_size >= LINK_BYTES:
        try:
            os.link(source, target)
            return
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
    shutil.copyfile(source, target)
