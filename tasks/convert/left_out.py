"""What a Hugging Face folder holds beside a model, and a conversion does not carry."""

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from tasks.manifest import RECORD

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".gguf", ".index.json")  # how files' names end
_ADAPTER = ("adapter_config.json", "adapter_model.*")  # as PEFT writes them


def adapter_problem(folder: Path) -> str | None:
    """Why a folder's model cannot be taken as it is: part of it is in an adapter."""
    return adapter_among([path.name for path in folder.iterdir()], str(folder)) if folder.is_dir() else None


def adapter_among(names: Iterable[str], folder: str) -> str | None:
    """The same, by the names of the folder's files."""
    found = sorted(name for name in names if any(fnmatch(name, pattern) for pattern in _ADAPTER))
    if not found:
        return None
    return (
        f"{folder}: has an adapter ({', '.join(found)}), which would be left out; merge it into the model (PEFT's "
        f"merge_and_unload, then save_pretrained), or move it to another folder"
    )


def left_out(folder: Path, used: set[str]) -> list[str]:
    """Subfolders and files of weights that are not `used`, by name. Hidden folders are of tools; record/ is Baton's."""
    files = {path.name for path in folder.iterdir() if path.is_file() and path.name.endswith(WEIGHTS)}
    folders = {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}
    return sorted((files - used) | {f"{name}/" for name in folders - {RECORD}})
