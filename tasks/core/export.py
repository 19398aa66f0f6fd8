"""Write a folder that is given to somebody: complete or not at all, and never over other files."""

from collections.abc import Callable
from pathlib import Path

from baton.infra.errors import UserError
from baton.infra.paths import home_path
from baton.infra.storage.durable import new_folder
from baton.tasks.core.manifest import content_digest


def write_folder(folder: Path, fill: Callable[[Path], None]) -> bool:
    """Write a new folder with what `fill` writes into an empty one beside it. Return False if the folder was there with
    the same content. Raises UserError if it has other files, or is in Baton's home."""
    if folder.resolve().is_relative_to(home_path().resolve()):
        raise UserError(f"{folder}: is in Baton's home, {home_path()}. Choose a folder outside of it")
    if not folder.name or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder}: cannot be replaced by a folder. Choose a new folder")
    was_there = folder.exists() and any(folder.iterdir())
    with new_folder(folder) as partial:
        fill(partial)
        expected = content_digest(partial)
    if content_digest(folder) != expected:
        raise UserError(f"{folder}: has other files already. Choose a new folder")
    return not was_there
