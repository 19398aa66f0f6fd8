"""What a conversion would read and write, and every problem that can be known before: nothing is written."""

import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tasks.convert.errors import ConversionError
from tasks.convert.export_model import ExportOptions, check_beside, export_notes, files_beside, plan_shards
from tasks.convert.from_spec import Untrainable
from tasks.convert.import_model import HuggingFaceModel, ImportOptions, description, import_notes, refuse_mixed
from tasks.convert.mapping import Weight
from tasks.convert.megatron_model import CHECKPOINT, HUGGINGFACE, MegatronModel
from tasks.convert.transfer import cast
from tasks.job import StageError
from tasks.manifest import ArtifactError


@dataclass
class Preflight:
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def attempt(self, work: Callable[[], Any]) -> Any:
        """What `work` returns; None, and one more problem, when it cannot be done."""
        try:
            return work()
        except (StageError, ArtifactError, OSError) as error:
            self.problems.append(str(error))


def import_preflight(
    checks: list[Callable[[], None]],
    opening: Callable[[], HuggingFaceModel],
    target: Path,
    options: ImportOptions,
) -> Preflight:
    found = Preflight()
    for check in checks:
        found.attempt(check)
    source: HuggingFaceModel | None = found.attempt(opening)
    if source is None:
        return found
    stored = {weight.name: source.files.tensors[weight.parts[0][0]].dtype for weight in source.weights}
    files = len({weight.layer for weight in source.weights})
    _describe(found, source, source.folder, stored)
    written = {name: cast(name, dtype, options.dtype) for name, dtype in stored.items()}
    found.attempt(lambda: refuse_mixed(source.weights, written))
    _weights(found, target / CHECKPOINT, source.weights, stored, options.dtype, f"{files} files .distcp", target)
    _beside(found, source.folder, target / HUGGINGFACE)
    try:
        description(source, options.dtype)
        found.lines.append(f"writes {target / 'model.json'}")
    except Untrainable:
        pass  # among the notes
    found.notes = import_notes(source, options)
    return found


def export_preflight(
    checks: list[Callable[[], None]],
    opening: Callable[[], MegatronModel],
    target: Path,
    options: ExportOptions,
    tokenizer: Path | None,
) -> Preflight:
    found = Preflight()
    for check in checks:
        found.attempt(check)
    source: MegatronModel | None = found.attempt(opening)
    if source is None:
        return found
    stored = {weight.name: source.checkpoint.tensors[source.keys[weight.key]].dtype for weight in source.weights}
    shards = len(plan_shards(source, options))
    _describe(found, source, source.checkpoint.folder, stored)
    _weights(found, target, source.weights, stored, options.dtype, f"{shards} files .safetensors", target)
    for place in (source.beside, tokenizer):
        if place:
            found.attempt(lambda place=place: check_beside(place))  # type: ignore[misc]
            _beside(found, place, target)
    if source.beside is None:
        found.lines.append(f"writes {target / 'config.json'}, made from the checkpoint's description")
    found.notes = export_notes(source, options)
    return found


def _describe(
    found: Preflight, source: HuggingFaceModel | MegatronModel, folder: Path, stored: dict[str, torch.dtype]
) -> None:
    model, fields = source.architecture, source.fields
    tensors = sum(len(weight.parts) for weight in source.weights)
    dtypes = ", ".join(f"{str(dtype).removeprefix('torch.')} {n}" for dtype, n in Counter(stored.values()).items())
    found.lines.append(
        f"reads {folder}: family {fields['model_type']}, {model.layers} layers, hidden size {model.hidden}, "
        f"vocabulary {model.vocab}; {sum(weight.elements for weight in source.weights)} numbers in "
        f"{len(source.weights)} weights of Megatron ({tensors} tensors of Hugging Face); by dtype: {dtypes}"
    )


def _weights(
    found: Preflight,
    folder: Path,
    weights: list[Weight],
    stored: dict[str, torch.dtype],
    dtype: str | None,
    files: str,
    target: Path,
) -> None:
    dtypes = {name: cast(name, kind, dtype) for name, kind in stored.items()}
    size = sum(weight.elements * dtypes[weight.name].itemsize for weight in weights)
    names = ", ".join(sorted({str(kind).removeprefix("torch.") for kind in dtypes.values()}))
    found.lines.append(f"writes {folder}: {files}, {size} bytes of weights as {names}")
    found.attempt(lambda: _room(target, size))


def _room(target: Path, size: int) -> None:
    """Raises ConversionError when the weights do not fit, or the folder cannot be made."""
    parent = next(path for path in target.absolute().parents if path.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise ConversionError(f"{target}: cannot be made in {parent}, which is no folder that may be written to")
    free = shutil.disk_usage(parent).free
    if free < size:
        raise ConversionError(f"{target}: {size} bytes are needed and {free} are free; make room, or choose another")


def _beside(found: Preflight, source: Path, target: Path) -> None:
    files = ", ".join(f"{path.name} ({path.stat().st_size} bytes)" for path in files_beside(source))
    found.lines.append(f"copies from {source} to {target}: {files or 'no files beside the weights'}")
