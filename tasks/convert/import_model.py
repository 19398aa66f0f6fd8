"""Import a Hugging Face model to a Megatron dist_checkpoint of its weights, which any layout can load.

TARGET/checkpoint/     one .distcp file per layer
TARGET/huggingface/    config, generation config and tokenizer, unchanged (except config.json's dtype after a cast)
TARGET/model.json      the model as a `pretrain` spec, if a spec can describe it
"""

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

import torch

from baton.tasks.convert.architecture import Architecture
from baton.tasks.convert.export_model import Progress, check_beside, copy_beside, files_beside, set_dtype, write_account
from baton.tasks.convert.families import family_of, read
from baton.tasks.convert.from_spec import Untrainable, model_spec
from baton.tasks.convert.hf_forward import check_runs
from baton.tasks.convert.mapping import Weight, check_total_size, weights
from baton.tasks.convert.megatron_model import CHECKPOINT, full_config, join_problems
from baton.tasks.convert.partial_dir import Partial
from baton.tasks.convert.safetensors_files import StoredModel
from baton.tasks.convert.target import ACCOUNT
from baton.tasks.convert.torch_dist_writer import SMALL, DistFile, Place, weights_file, write_metadata
from baton.tasks.convert.transfer import DTYPES, Entry, cast, import_weight, map_weights, size
from baton.tasks.convert.unconverted_files import adapter_problem, left_out
from baton.tasks.core.manifest import RECORD
from baton.tasks.models.errors import ConversionError
from baton.tasks.models.hf_files import BUFFERS, HUGGINGFACE, ModelFilesError, model_in

_OUTPUT = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True)
class HuggingFaceModel:
    """An opened and checked model: every weight exists with its shape, and there are no others."""

    folder: Path
    fields: dict[str, Any]  # config.json, with defaults
    architecture: Architecture
    files: StoredModel
    weights: list[Weight]
    dropped: list[str]  # tensors that repeat others
    left_out: list[str]  # subfolders and files with other weights

    def dtypes(self) -> dict[str, torch.dtype]:
        """Return the type in which each weight is stored, by the weight's name."""
        return {weight.name: self.files.tensors[weight.parts[0][0]].dtype for weight in self.weights}


@dataclass(frozen=True)
class ImportOptions:
    dtype: str | None = None  # one of DTYPES; None: unchanged
    replace: bool = False


def open_hugging_face(folder: Path) -> HuggingFaceModel:
    """Open a folder with config.json and safetensors. Raises ConversionError with all problems."""
    if not folder.is_dir():
        raise ConversionError(f"{folder}: does not exist; give a folder with config.json and safetensors")
    if problem := adapter_problem(folder):
        raise ConversionError(problem)
    fields = full_config(folder)
    model = read(fields)
    try:
        described = model_in(folder)
    except ModelFilesError as error:
        raise ConversionError(str(error)) from error
    files = StoredModel(folder)
    check_total_size(model, sum(prod(tensor.shape) for tensor in files.tensors.values()))
    needed = list(weights(family_of(fields).table, model))
    expected = {name: shape for weight in needed for name, shape in weight.parts}
    dropped = _dropped(files, expected)
    wrong = [f"{name} {list(shape)} is missing" for name, shape in expected.items() if name not in files.tensors]
    for name, tensor in files.tensors.items():
        if name in dropped:
            continue
        if name not in expected:
            wrong.append(f"{name} {list(tensor.shape)} has no place in the model")
        elif tensor.shape != expected[name]:
            wrong.append(f"{name} is {list(tensor.shape)}; the config says {list(expected[name])}")
    for weight in needed:
        dtypes = {str(files.tensors[name].dtype) for name, _ in weight.parts if name in files.tensors}
        if len(dtypes) > 1:
            wrong.append(f"{', '.join(name for name, _ in weight.parts)} have different types: {', '.join(dtypes)}")
    wrong += described.problems() if described.vocabulary else []  # a model without a tokenizer gets one from elsewhere
    if wrong:
        raise ConversionError(f"{folder}: {join_problems(wrong)}")
    check_runs(fields)
    check_beside(folder)
    return HuggingFaceModel(folder, fields, model, files, needed, dropped, left_out(folder, files.names))


def _dropped(files: StoredModel, expected: dict[str, tuple[int, ...]]) -> list[str]:
    """Return the tensors that need no conversion, since they follow from the config or repeat another tensor."""
    dropped = [name for name in files.tensors if name.endswith(BUFFERS) and name not in expected]
    if _OUTPUT in files.tensors and _OUTPUT not in expected and _EMBEDDING in files.tensors:
        if files.digest(_OUTPUT) != files.digest(_EMBEDDING):
            raise ConversionError(
                f"{files.folder}: the config ties the output to the embedding, but {_OUTPUT} differs from {_EMBEDDING}"
            )
        dropped.append(_OUTPUT)
    return dropped


def description(source: HuggingFaceModel, dtype: str | None) -> dict[str, Any]:
    """Return model.json for weights in `dtype`. Raises Untrainable if `pretrain` has no spec for the model."""
    first = source.weights[0]
    written = cast(first.name, source.files.tensors[first.parts[0][0]].dtype, dtype)
    return {
        "model": model_spec(source.fields["model_type"], source.architecture).model_dump(mode="json"),
        "vocab_size": source.architecture.vocab,
        "precision": precision(written),
    }


def precision(dtype: torch.dtype) -> str:
    """Return model.json's name for a type."""
    return {kind: name for name, kind in DTYPES.items()}.get(dtype, str(dtype))


def import_notes(source: HuggingFaceModel, options: ImportOptions) -> list[str]:
    """Return notes for the user about an import that is possible."""
    notes = [f"{name} is left out: it follows from the config or repeats another tensor" for name in source.dropped]
    notes += [f"{name} is left out: it is not part of the model's safetensors" for name in source.left_out]
    try:
        description(source, options.dtype)
    except Untrainable as error:
        notes.append(f"model.json is left out, so `pretrain` cannot continue from this checkpoint: {error}")
    return notes


def layers(source: HuggingFaceModel) -> list[list[Weight]]:
    """Return the weights of each .distcp file."""
    return [list(group) for _, group in groupby(source.weights, key=lambda weight: weight.layer)]


def import_partial(source: HuggingFaceModel, target: Path, options: ImportOptions) -> Partial:
    """Prepare the import, before anything is written. Raises ConversionError if `target` may not be written."""
    names = [f"{CHECKPOINT}/{weights_file(number)}" for number in range(len(layers(source)))]
    names += ["model.json", f"{RECORD}/{ACCOUNT}", *(f"{CHECKPOINT}/{name}" for name in SMALL)]
    names += [f"{HUGGINGFACE}/{path.name}" for path in files_beside(source.folder)]
    return Partial(target, names, [source.folder], options.replace)


def import_model(
    source: HuggingFaceModel,
    target: Path,
    options: ImportOptions,
    progress: Progress,
    not_finite: Callable[[str], None] = lambda name: None,
) -> list[Entry]:
    """Write `target`, and return an entry for each weight. `not_finite(name)` is called for each tensor that has NaN or
    infinity, from any thread. Raises ConversionError and OSError; `target`.partial then has the written files, and the
    next call starts from the beginning."""
    source_dtypes = source.dtypes()
    dtypes = {name: cast(name, dtype, options.dtype) for name, dtype in source_dtypes.items()}
    refuse_mixed(source.weights, dtypes)
    groups = layers(source)
    try:
        about = description(source, options.dtype)
    except Untrainable:
        about = None  # import_notes has the reason
    with import_partial(source, target, options) as making:
        making.check_space(size(source.weights, dtypes))
        folder = making.folder / CHECKPOINT
        folder.mkdir()
        with ExitStack() as open_files:
            # All files are open at once, since threads would otherwise wait for the largest weight at the end of each
            # file
            places: dict[str, Place] = {}
            files: dict[str, DistFile] = {}
            for number, group in enumerate(groups):
                file = DistFile(folder / weights_file(number), [(weight, dtypes[weight.name]) for weight in group])
                open_files.callback(file.close)
                places |= file.places
                files |= {weight.name: file for weight in group}
            # Before the weights, when the files are allocated, so that a full disk fails here and not after hours
            write_metadata(folder, [(weight, dtypes[weight.name]) for weight in source.weights], places)

            def move(weight: Weight) -> Entry:
                write = partial(files[weight.name].write, weight)
                source_dtype, dtype = source_dtypes[weight.name], dtypes[weight.name]
                return import_weight(weight, source_dtype, dtype, source.files.rows_into, write, not_finite)

            account = map_weights(move, source.weights, lambda weight: size([weight], dtypes), progress)
        _write_beside(source, making.folder, about, set(dtypes.values()) if options.dtype else None)
        write_account(making.folder, account, dropped=source.dropped, left_out=source.left_out)
        making.finish()
    return account


def refuse_mixed(weights: list[Weight], dtypes: dict[str, torch.dtype]) -> None:
    """Raise ConversionError if layers or experts that Megatron stacks in one tensor have different types."""
    by_dtype: dict[str, dict[str, list[str]]] = {}
    for weight in weights:
        names = by_dtype.setdefault(weight.key, {}).setdefault(str(dtypes[weight.name]).removeprefix("torch."), [])
        names += [name for name, _ in weight.parts]
    wrong = [
        f"{key} is one tensor in Megatron's checkpoint but its weights have different types ("
        + "; ".join(f"{dtype}: {', '.join(names[:3])}{', …' * (len(names) > 3)}" for dtype, names in kinds.items())
        + ")"
        for key, kinds in by_dtype.items()
        if len(kinds) > 1
    ]
    if wrong:
        raise ConversionError(f"{join_problems(wrong)}. Choose one type with --dtype")


def _write_beside(
    source: HuggingFaceModel, folder: Path, about: dict[str, Any] | None, cast_to: set[torch.dtype] | None
) -> None:
    (folder / HUGGINGFACE).mkdir()
    copy_beside(source.folder, folder / HUGGINGFACE)
    if cast_to:
        set_dtype(folder / HUGGINGFACE / "config.json", cast_to)
    if about:
        (folder / "model.json").write_text(json.dumps(about, indent=1))
