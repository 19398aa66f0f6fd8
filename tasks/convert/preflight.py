"""Report the files that a conversion would read and write, and the problems known in advance, without writing."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from baton.tasks.convert.export_model import ExportOptions, export_notes, export_partial, files_beside, shards_of
from baton.tasks.convert.from_spec import Untrainable
from baton.tasks.convert.import_model import (
    HuggingFaceModel,
    ImportOptions,
    description,
    import_notes,
    import_partial,
    layers,
    refuse_mixed,
)
from baton.tasks.convert.megatron_model import CHECKPOINT, MegatronModel
from baton.tasks.convert.partial_dir import Partial
from baton.tasks.convert.transfer import cast, size
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import ArtifactError
from baton.tasks.models.hf_files import HUGGINGFACE

T = TypeVar("T")
S = TypeVar("S", HuggingFaceModel, MegatronModel)


@dataclass
class Preflight:
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def attempt(self, work: Callable[[], T]) -> T | None:
        """Return the result of `work`; if it fails, add the error to the problems and return None."""
        try:
            return work()
        except (StageError, ArtifactError, OSError) as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))
            return None

    def opened(self, checks: list[Callable[[], None]], open_model: Callable[[], S]) -> S | None:
        for check in checks:
            self.attempt(check)
        return self.attempt(open_model)


def import_preflight(
    checks: list[Callable[[], None]],
    open_model: Callable[[], HuggingFaceModel],
    target: Path,
    options: ImportOptions,
) -> Preflight:
    preflight = Preflight()
    source = preflight.opened(checks, open_model)
    if source is None:
        return preflight
    source_dtypes = source.dtypes()
    written = {name: cast(name, dtype, options.dtype) for name, dtype in source_dtypes.items()}
    _describe(preflight, source, source.folder, source_dtypes)
    preflight.attempt(lambda: refuse_mixed(source.weights, written))
    files = f"{len(layers(source))} .distcp files"
    _weights(preflight, target / CHECKPOINT, source, written, files, lambda: import_partial(source, target, options))
    _beside(preflight, source.folder, target / HUGGINGFACE)
    try:
        description(source, options.dtype)
        preflight.lines.append(f"writes {target / 'model.json'}")
    except Untrainable:
        pass  # import_notes has the reason
    preflight.notes = import_notes(source, options)
    return preflight


def export_preflight(
    checks: list[Callable[[], None]],
    open_model: Callable[[], MegatronModel],
    target: Path,
    options: ExportOptions,
    tokenizer: Path | None,
) -> Preflight:
    preflight = Preflight()
    source = preflight.opened(checks, open_model)
    if source is None:
        return preflight
    source_dtypes = source.dtypes()
    written = {name: cast(name, dtype, options.dtype) for name, dtype in source_dtypes.items()}
    files = len(shards_of(source.weights, written, options))
    _describe(preflight, source, source.checkpoint.folder, source_dtypes)

    def partial() -> Partial:
        return export_partial(source, target, options, tokenizer, files)

    _weights(preflight, target, source, written, f"{files} .safetensors files", partial)
    for place in (source.beside, tokenizer):
        if place:
            _beside(preflight, place, target)
    if source.beside is None:
        preflight.lines.append(f"writes {target / 'config.json'}, created from the checkpoint's description")
    preflight.notes = export_notes(source, options, tokenizer)
    return preflight


def _describe(
    preflight: Preflight, source: HuggingFaceModel | MegatronModel, folder: Path, source_dtypes: dict[str, torch.dtype]
) -> None:
    model, fields = source.architecture, source.fields
    tensors = sum(len(weight.parts) for weight in source.weights)
    dtypes = ", ".join(
        f"{str(dtype).removeprefix('torch.')} {n}" for dtype, n in Counter(source_dtypes.values()).items()
    )
    preflight.lines.append(
        f"reads {folder}: family {fields['model_type']}, {model.layers} layers, hidden size {model.hidden}, "
        f"vocabulary {model.vocab}; {sum(weight.elements for weight in source.weights)} parameters in "
        f"{len(source.weights)} Megatron weights ({tensors} Hugging Face tensors); by dtype: {dtypes}"
    )


def _weights(
    preflight: Preflight,
    folder: Path,
    source: HuggingFaceModel | MegatronModel,
    written: dict[str, torch.dtype],
    files: str,
    partial: Callable[[], Partial],
) -> None:
    """Describe the weights to write. `partial`: the conversion, whose checks of target and disk space run."""
    needed = size(source.weights, written)
    names = ", ".join(sorted({str(dtype).removeprefix("torch.") for dtype in written.values()}))
    preflight.lines.append(f"writes {folder}: {files}, {needed} bytes of weights as {names}")
    preflight.attempt(lambda: partial().check_space(needed))


def _beside(preflight: Preflight, source: Path, target: Path) -> None:
    files = ", ".join(f"{path.name} ({path.stat().st_size} bytes)" for path in files_beside(source))
    preflight.lines.append(f"copies from {source} to {target}: {files or 'no other files'}")
