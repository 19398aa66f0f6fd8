"""A published model's folder on the Hugging Face hub."""

from collections.abc import Callable
from pathlib import Path

from baton.infra.storage.hub import Consent, Pushed, Repository, push
from baton.tasks.core.manifest import MANIFEST, RECORD

# Files of an earlier version: with the new ones, another model would load from the repository
MODEL_FILES = ("*.safetensors", "*.bin", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")


def push_model(
    folder: Path,
    repository: Repository,
    consent: Consent,
    message: str,
    progress: Callable[[int, int], None] | None = None,
) -> Pushed:
    """Push a folder with a card, without its manifest and record, which have places and times of this machine. Raises
    StorageError."""
    names = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    files = {name: path for name, path in names.items() if name.split("/")[0] not in (MANIFEST, RECORD)}
    return push(repository, files, consent, message, MODEL_FILES, progress)
