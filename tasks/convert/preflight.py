"""What a conversion would read and write, and the problems that can be known before: nothing is written."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from tasks.convert.export_model import ExportOptions, export_notes, export_partial, files_beside, shards_of
from tasks.convert.from_spec import Untrainable
from tasks.convert.import_model import (
    HuggingFaceModel,
    ImportOptions,
    description,
    import_notes,
    import_partial,
    layers,
    refuse_mixed,
)
from tasks.convert.megatron_model import CHECKPOINT, HUGGINGFACE, MegatronModel
from tasks.convert.partial import Partial
from tasks.convert.transfer import cast, size
from tasks.job import StageError
from tasks.manifest import ArtifactError

T = TypeVar("T")
S = TypeVar("S", HuggingFaceModel, MegatronModel)


@dataclass
class Preflight:
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def attempt(self, work: Callable[[], T]) -> T | None:
        """What `work` returns; None, and one more problem, when it cannot be done."""
        try:
            return work()
        except (StageError, ArtifactError, OSError) as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))
            return None

    def opened(self, checks: list[Callable[[], None]], opening: Callable[[], S]) -> S | None:
        for check in checks:
            self.attempt(check)
        return self.attempt(opening)


def import_preflight(
    checks: list[Callable[[], None]],
    opening: Callable[[], HuggingFaceModel],
    target: Path,
    options: ImportOptions,
) -> Preflight:
    found = Preflight()
    source = found.opened(checks, opening)
    if source is None:
        return found
    stored = source.dtypes()
    written = {name: cast(name, dtype, options.dtype) for name, dtype in stored.items()}
    _describe(found, source, source.folder, stored)
    found.attempt(lambda: refuse_mixed(source.weights, written))
    files = f"{len(layers(source))} files .distcp"
    _weights(found, target / CHECKPOINT, source, written, files, lambda: import_partial(source, target, options))
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
    source = found.opened(checks, opening)
    if source is None:
        return found
    stored = source.dtypes()
    written = {name: cast(name, dtype, options.dtype) for name, dtype in stored.items()}
    files = len(shards_of(source.weights, written, options))
    _describe(found, source, source.checkpoint.folder, stored)

    def making() -> Partial:
        return export_partial(source, target, options, tokenizer, files)

    _weights(found, target, source, written, f"{files} files .safetensors", making)
    for place in (source.beside, tokenizer):
        if place:
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
    source: HuggingFaceModel | MegatronModel,
    written: dict[str, torch.dtype],
    files: str,
    making: Callable[[], Partial],
) -> None:
    """`making`: the conversion, which is not begun; its own checks of target and room are made."""
    needed = size(source.weights, written)
    names = ", ".join(sorted({str(dtype).removeprefix("torch.") for dtype in written.values()}))
    found.lines.append(f"writes {folder}: {files}, {needed} bytes of weights as {names}")
    found.attempt(lambda: making().room(needed))


def _beside(found: Preflight, source: Path, target: Path) -> None:
    files = ", ".join(f"{path.name} ({path.stat().st_size} bytes)" for path in files_beside(source))
    found.lines.append(f"copies from {source} to {target}: {files or 'no files beside the weights'}")
