"""Models by name: HOME/models/NAME is a link to the folder of the model that was published last under this name.

Beside the links are the models that a service has fetched, in folders named by their digests (tasks/serve/fetched.py).
"""

import os
import re
from pathlib import Path

from baton.infra.paths import home_path
from baton.infra.storage.durable import make_folder, replacement

NAME = re.compile(r"(?![0-9a-f]{64}$)[A-Za-z0-9][A-Za-z0-9_.-]{0,99}(?<!\.partial)", re.ASCII)


class NotNamed(Exception):
    """Raised if a model's folder cannot get a link by name. The model itself is not affected."""


def name_model(name: str, model: Path) -> Path:
    """Make HOME/models/NAME a link to a model's folder, in place of an earlier link, and return the link. At any moment
    a reader finds the old folder or the new one. In the home, the link is relative, so that the home can be moved.
    Raises NotNamed."""
    folder, home = home_path() / "models", home_path().resolve()
    link = folder / name
    if not NAME.fullmatch(name):
        raise NotNamed(f"{name!r}: a folder's link is named with letters, digits, _, . and -, and not as a digest is")
    try:
        make_folder(folder)
        if link.exists() and not link.is_symlink():
            raise NotNamed(f"{link} is no link, and stays as it is: move it away, and publish the model again")
        target = model.resolve()
        if target.is_relative_to(home):
            target = Path(os.path.relpath(target, folder.resolve()))
        with replacement(link) as partial:
            partial.symlink_to(target)
    except OSError as error:
        raise NotNamed(f"{link} cannot be a link: {(error.strerror or str(error)).lower()}") from error
    return link
