"""Find files in a Hugging Face folder that a conversion does not convert or copy."""

from collections.abc import Iterable, Set
from fnmatch import fnmatch
from pathlib import Path

from baton.tasks.core.manifest import RECORD

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".gguf", ".index.json")  # suffixes
_ADAPTER = ("adapter_config.json", "adapter_model.*")  # files that PEFT writes


def adapter_problem(folder: Path) -> str | None:
    """Return an error message if part of the folder's model is in an adapter."""
    return adapter_among([path.name for path in folder.iterdir()], str(folder)) if folder.is_dir() else None


def adapter_among(names: Iterable[str], folder: str) -> str | None:
    """Return the same from the names of the folder's files."""
    adapters = sorted(name for name in names if any(fnmatch(name, pattern) for pattern in _ADAPTER))
    if not adapters:
        return None
    return (
        f"{folder}: has an adapter ({', '.join(adapters)}), which would be ignored; merge it into the model (PEFT's "
        f"merge_and_unload, then save_pretrained), or move it to another folder"
    )


def left_out(folder: Path, used: Set[str]) -> list[str]:
    """Return the names of subfolders and weight files that are not `used`. Hidden folders belong to tools, and record/
    to Baton."""
    files = {path.name for path in folder.iterdir() if path.is_file() and path.name.endswith(WEIGHTS)}
    folders = {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}
    return sorted((files - used) | {f"{name}/" for name in folders - {RECORD} - used})
