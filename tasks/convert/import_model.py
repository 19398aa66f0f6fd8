"""Hugging Face → Megatron: a dist_checkpoint of the weights alone, which any layout can load.

TARGET/checkpoint/     one .distcp file a layer
TARGET/huggingface/    config, generation config, tokenizer, as they were
TARGET/model.json      the same model as a spec of `pretrain`, where that has words for it
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
from blake3 import blake3

from tasks.convert.architecture import Architecture
from tasks.convert.errors import ConversionError
from tasks.convert.export_model import Progress, copy_beside, files_beside, write_account
from tasks.convert.families import family_of, read
from tasks.convert.files import raw
from tasks.convert.from_spec import model_spec
from tasks.convert.left_out import adapter_problem, left_out
from tasks.convert.mapping import Weight, weights
from tasks.convert.megatron_model import CHECKPOINT, HUGGINGFACE, full_config, several
from tasks.convert.partial import Files, Partial, states
from tasks.convert.safetensors_files import Model
from tasks.convert.target import ACCOUNT
from tasks.convert.torch_dist_writer import SMALL, DistFile, Place, weights_file, write_metadata
from tasks.convert.transfer import Entry, cast, each, import_weight
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
    return HuggingFaceModel(folder, fields, model, files, wanted, dropped, left_out(folder, files.names))


def _dropped(files: Model, expected: dict[str, tuple[int, ...]]) -> list[str]:
    """What need not be carried: it follows from the config, or repeats another tensor."""
    dropped = [name for name in files.tensors if name.endswith(_DERIVED)]
    if _OUTPUT in files.tensors and _OUTPUT not in expected and _EMBEDDING in files.tensors:
        if digest(files, _OUTPUT) != digest(files, _EMBEDDING):
            raise ConversionError(
                f"{files.folder}: the config ties the output to the embedding, and {_OUTPUT} is not {_EMBEDDING}"
            )
        dropped.append(_OUTPUT)
    return dropped


def digest(files: Model, name: str) -> str:
    """BLAKE3 of a tensor's bytes."""
    stored = files.tensors[name]
    found = blake3()
    height = max(1, (1 << 20) // max(1, prod(stored.shape[1:]) * stored.dtype.itemsize))
    for start in range(0, stored.shape[0], height):
        rows = torch.empty((min(height, stored.shape[0] - start), *stored.shape[1:]), dtype=stored.dtype)
        files.rows_into(name, start, rows)
        found.update(raw(rows))
    return found.hexdigest()


def import_model(source: HuggingFaceModel, target: Path, options: ImportOptions, progress: Progress) -> list[Entry]:
    """Write `target`; returns the account of its weights. Raises ConversionError, and OSError; then what was
    written is in `target`.partial, and the next call goes on there."""
    stored = {weight.name: source.files.tensors[weight.parts[0][0]].dtype for weight in source.weights}
    dtypes = {name: cast(name, dtype, options.dtype) for name, dtype in stored.items()}
    _refuse_mixed(source.weights, dtypes)
    state = states(source.folder, {item.file for item in source.files.tensors.values()})
    plan = {"import": str(source.folder.absolute()), "files": state, "config": source.fields, "dtype": options.dtype}
    total, written = sum(_bytes(weight, dtypes) for weight in source.weights), 0
    groups = [list(group) for _, group in groupby(source.weights, key=lambda weight: weight.layer)]
    large = [f"{CHECKPOINT}/{weights_file(number)}" for number in range(len(groups))]
    small = ["model.json", f"{RECORD}/{ACCOUNT}", *(f"{CHECKPOINT}/{name}" for name in SMALL)]
    small += [f"{HUGGINGFACE}/{path.name}" for path in files_beside(source.folder)]
    with Partial(target, plan, Files(large, small), [source.folder], options.replace) as making:
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
                written += _bytes(weight, dtypes)
                progress(written, total)

            account = each(move, source.weights, moved)
        write_metadata(folder, [(weight, dtypes[weight.name]) for weight in source.weights], places)
        _write_beside(source, making.folder, str(dtypes[source.weights[0].name]))
        write_account(making.folder, account, dropped=source.dropped, left_out=source.left_out)
        making.finish()
    return account


def _refuse_mixed(weights: list[Weight], dtypes: dict[str, torch.dtype]) -> None:
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


def _bytes(weight: Weight, dtypes: dict[str, torch.dtype]) -> int:
    return weight.elements * dtypes[weight.name].itemsize


def _write_beside(source: HuggingFaceModel, folder: Path, dtype: str) -> None:
    (folder / HUGGINGFACE).mkdir(exist_ok=True)
    copy_beside(source.folder, folder / HUGGINGFACE)
    spec = model_spec(source.fields["model_type"], source.architecture)
    if spec:
        about = {
            "model": spec.model_dump(mode="json"),
            "vocab_size": source.architecture.vocab,
            "precision": {"torch.bfloat16": "bf16", "torch.float32": "fp32"}.get(dtype, dtype),
        }
        (folder / "model.json").write_text(json.dumps(about, indent=1))
