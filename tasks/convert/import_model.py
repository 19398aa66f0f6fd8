"""Hugging Face → Megatron: a dist_checkpoint of the weights alone, which any layout can load.

TARGET/checkpoint/     one .distcp file a layer
TARGET/huggingface/    config, generation config, tokenizer, as they were (config.json's dtype is that of a cast)
TARGET/model.json      the same model as a spec of `pretrain`, where that can describe it
"""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

import torch

from tasks.convert.architecture import Architecture
from tasks.convert.errors import ConversionError
from tasks.convert.export_model import Progress, check_beside, copy_beside, files_beside, set_dtype, write_account
from tasks.convert.families import family_of, read
from tasks.convert.from_spec import Untrainable, model_spec
from tasks.convert.left_out import adapter_problem, left_out
from tasks.convert.mapping import Weight, refuse_far_off, weights
from tasks.convert.megatron_model import CHECKPOINT, HUGGINGFACE, full_config, several
from tasks.convert.partial import Files, Partial, states
from tasks.convert.reference import check_runs
from tasks.convert.safetensors_files import Model
from tasks.convert.target import ACCOUNT
from tasks.convert.torch_dist_writer import SMALL, DistFile, Place, weights_file, write_metadata
from tasks.convert.transfer import DTYPES, Entry, cast, each, import_weight, size
from tasks.manifest import RECORD

# left over in old files, and made anew by every model
_DERIVED = ("rotary_emb.inv_freq",)
_OUTPUT = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True)
class HuggingFaceModel:
    """Opened and checked: every weight is there, in its shape, and none is left over."""

    folder: Path
    fields: dict[str, Any]  # config.json, with defaults
    architecture: Architecture
    files: Model
    weights: list[Weight]
    dropped: list[str]  # tensors that repeat others
    left_out: list[str]  # subfolders, and files with other weights

    def dtypes(self) -> dict[str, torch.dtype]:
        """The type that each weight is stored in, by the weight's name."""
        return {weight.name: self.files.tensors[weight.parts[0][0]].dtype for weight in self.weights}


@dataclass(frozen=True)
class ImportOptions:
    dtype: str | None = None  # of DTYPES; None: as in the files
    replace: bool = False


def open_hugging_face(folder: Path) -> HuggingFaceModel:
    """Raises ConversionError with all that is wrong."""
    if not folder.is_dir():
        raise ConversionError(f"{folder}: is not there; a folder with config.json and safetensors is wanted")
    if problem := adapter_problem(folder):
        raise ConversionError(problem)
    fields = full_config(folder)
    model = read(fields)
    files = Model(folder)
    refuse_far_off(model, sum(prod(stored.shape) for stored in files.tensors.values()))
    wanted = list(weights(family_of(fields).table, model))
    expected = {name: shape for weight in wanted for name, shape in weight.parts}
    dropped = _dropped(files, expected)
    wrong = [f"{name} {list(shape)} is missing" for name, shape in expected.items() if name not in files.tensors]
    for name, stored in files.tensors.items():
        if name in dropped:
            continue
        if name not in expected:
            wrong.append(f"{name} {list(stored.shape)} has no place in the model")
        elif stored.shape != expected[name]:
            wrong.append(f"{name} is {list(stored.shape)}; the config says {list(expected[name])}")
    for weight in wanted:
        dtypes = {str(files.tensors[name].dtype) for name, _ in weight.parts if name in files.tensors}
        if len(dtypes) > 1:
            wrong.append(f"{', '.join(name for name, _ in weight.parts)} are of several types: {', '.join(dtypes)}")
    if wrong:
        raise ConversionError(f"{folder}: {several(wrong)}")
    check_runs(fields)
    check_beside(folder)
    return HuggingFaceModel(folder, fields, model, files, wanted, dropped, left_out(folder, files.names))


def _dropped(files: Model, expected: dict[str, tuple[int, ...]]) -> list[str]:
    """What need not be carried: it follows from the config, or repeats another tensor."""
    dropped = [name for name in files.tensors if name.endswith(_DERIVED)]
    if _OUTPUT in files.tensors and _OUTPUT not in expected and _EMBEDDING in files.tensors:
        if files.digest(_OUTPUT) != files.digest(_EMBEDDING):
            raise ConversionError(
                f"{files.folder}: the config ties the output to the embedding, and {_OUTPUT} is not {_EMBEDDING}"
            )
        dropped.append(_OUTPUT)
    return dropped


def description(source: HuggingFaceModel, dtype: str | None) -> dict[str, Any]:
    """model.json, of weights in `dtype`. Raises Untrainable where `pretrain` has no spec for the model."""
    first = source.weights[0]
    stored = cast(first.name, source.files.tensors[first.parts[0][0]].dtype, dtype)
    return {
        "model": model_spec(source.fields["model_type"], source.architecture).model_dump(mode="json"),
        "vocab_size": source.architecture.vocab,
        "precision": precision(stored),
    }


def precision(dtype: torch.dtype) -> str:
    """The name of a type in model.json."""
    return {kind: name for name, kind in DTYPES.items()}.get(dtype, str(dtype))


def import_notes(source: HuggingFaceModel, options: ImportOptions) -> list[str]:
    """What a person should know of an import that can be done."""
    found = [f"{name} is left out: it follows from the config or repeats another tensor" for name in source.dropped]
    found += [f"{name} is left out: it is not part of the model's safetensors" for name in source.left_out]
    try:
        description(source, options.dtype)
    except Untrainable as error:
        found.append(f"model.json is left out, so `pretrain` cannot go on from this checkpoint: {error}")
    return found


def layers(source: HuggingFaceModel) -> list[list[Weight]]:
    """The weights of each .distcp file."""
    return [list(group) for _, group in groupby(source.weights, key=lambda weight: weight.layer)]


def import_partial(source: HuggingFaceModel, target: Path, options: ImportOptions) -> Partial:
    """The conversion, before anything is written. Raises ConversionError when `target` may not be written."""
    state = states(source.folder, {item.file for item in source.files.tensors.values()})
    plan = {"import": str(source.folder.absolute()), "files": state, "config": source.fields, "dtype": options.dtype}
    large = [f"{CHECKPOINT}/{weights_file(number)}" for number in range(len(layers(source)))]
    small = ["model.json", f"{RECORD}/{ACCOUNT}", *(f"{CHECKPOINT}/{name}" for name in SMALL)]
    small += [f"{HUGGINGFACE}/{path.name}" for path in files_beside(source.folder)]
    return Partial(target, plan, Files(large, small), [source.folder], options.replace)


def import_model(source: HuggingFaceModel, target: Path, options: ImportOptions, progress: Progress) -> list[Entry]:
    """Write `target`; returns the account of its weights. Raises ConversionError, and OSError; then what was
    written is in `target`.partial, and the next call goes on there."""
    stored = source.dtypes()
    dtypes = {name: cast(name, dtype, options.dtype) for name, dtype in stored.items()}
    refuse_mixed(source.weights, dtypes)
    total, written = size(source.weights, dtypes), 0
    groups = layers(source)
    try:
        about = description(source, options.dtype)
    except Untrainable:
        about = None  # import_notes says why
    with import_partial(source, target, options) as making:
        making.room(total)
        progress(written, total)
        folder = making.folder / CHECKPOINT
        folder.mkdir(exist_ok=True)
        with ExitStack() as open_files:
            # all files at once: otherwise threads would wait at each one's end for the largest of its weights
            places: dict[str, Place] = {}
            files: dict[str, DistFile] = {}
            for number, group in enumerate(groups):
                file = DistFile(folder / weights_file(number), [(weight, dtypes[weight.name]) for weight in group])
                open_files.callback(file.close)
                places |= file.places
                files |= {weight.name: file for weight in group}

            def move(weight: Weight) -> Entry:
                known = making.written.get(weight.name)
                if known and files[weight.name].digest(weight) == known.digest:
                    return known
                write = partial(files[weight.name].write, weight)
                entry = import_weight(weight, stored[weight.name], dtypes[weight.name], source.files.rows_into, write)
                making.wrote(entry)
                return entry

            def moved(weight: Weight) -> None:
                nonlocal written
                written += size([weight], dtypes)
                progress(written, total)

            account = each(move, source.weights, moved)
        write_metadata(folder, [(weight, dtypes[weight.name]) for weight in source.weights], places)
        _write_beside(source, making.folder, about, set(dtypes.values()) if options.dtype else None)
        write_account(making.folder, account, dropped=source.dropped, left_out=source.left_out)
        making.finish()
    return account


def refuse_mixed(weights: list[Weight], dtypes: dict[str, torch.dtype]) -> None:
    """A stacked tensor of Megatron's has one type. Raises ConversionError where its layers or experts have several."""
    found: dict[str, dict[str, list[str]]] = {}
    for weight in weights:
        names = found.setdefault(weight.key, {}).setdefault(str(dtypes[weight.name]).removeprefix("torch."), [])
        names += [name for name, _ in weight.parts]
    wrong = [
        f"{key} is one tensor in Megatron's checkpoint and of several types here ("
        + "; ".join(f"{dtype}: {', '.join(names[:3])}{', …' * (len(names) > 3)}" for dtype, names in kinds.items())
        + ")"
        for key, kinds in found.items()
        if len(kinds) > 1
    ]
    if wrong:
        raise ConversionError(f"{several(wrong)}. Choose one type with --dtype")


def _write_beside(
    source: HuggingFaceModel, folder: Path, about: dict[str, Any] | None, cast_to: set[torch.dtype] | None
) -> None:
    (folder / HUGGINGFACE).mkdir(exist_ok=True)
    copy_beside(source.folder, folder / HUGGINGFACE)
    if cast_to:
        set_dtype(folder / HUGGINGFACE / "config.json", cast_to)
    if about:
        (folder / "model.json").write_text(json.dumps(about, indent=1))
