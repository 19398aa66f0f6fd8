"""Megatron → Hugging Face: shard after shard of safetensors, and all else that transformers wants beside them."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch

from tasks.convert.errors import ConversionError
from tasks.convert.left_out import WEIGHTS, adapter_problem
from tasks.convert.mapping import Weight
from tasks.convert.megatron_model import MegatronModel
from tasks.convert.partial import Files, Partial, states
from tasks.convert.safetensors_files import INDEX, SINGLE, Shard, write_index
from tasks.convert.target import ACCOUNT
from tasks.convert.torch_dist import METADATA
from tasks.convert.transfer import Entry, cast, each, export_weight
from tasks.manifest import MANIFEST, RECORD, file_digest

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class ExportOptions:
    dtype: str | None = None  # of DTYPES; None: as in the checkpoint
    max_shard_bytes: int = 5_000_000_000
    replace: bool = False  # what is at the target


def export_model(
    source: MegatronModel, target: Path, options: ExportOptions, tokenizer: Path | None, progress: Progress
) -> list[Entry]:
    """Write `target`; returns the account of its weights, which is also in record/conversion.json. Raises
    ConversionError, and OSError; then what was written is in `target`.partial, and the next call goes on there."""
    stored = {weight.name: source.checkpoint.tensors[source.keys[weight.key]].dtype for weight in source.weights}
    dtypes = {name: cast(name, dtype, options.dtype) for name, dtype in stored.items()}
    shards = list(_shards(source.weights, dtypes, options.max_shard_bytes))
    plan = {
        "export": file_digest(source.checkpoint.folder / METADATA),
        "from": str(source.checkpoint.folder.absolute()),
        "files": states(source.checkpoint.folder, source.checkpoint.files()),
        "config": source.fields,
        "dtype": options.dtype,
        "max_shard_bytes": options.max_shard_bytes,
    }
    total, written = sum(_bytes(weight, dtypes[weight.name]) for weight in source.weights), 0
    places = [place for place in (source.beside, tokenizer) if place]
    for place in places:
        if problem := adapter_problem(place):
            raise ConversionError(problem)
    small = [INDEX, "config.json", "generation_config.json", f"{RECORD}/{ACCOUNT}"]
    small += [path.name for place in places for path in files_beside(place)]
    inputs = [source.folder, source.checkpoint.folder, *places]
    with Partial(target, plan, Files(_names(len(shards)), small), inputs, options.replace) as making:
        making.room(total)
        progress(written, total)
        sizes: dict[str, dict[str, int]] = {}
        with ExitStack() as open_files:
            # all files at once: the kernel lets one thread at a time write to a file
            files: dict[str, Shard] = {}
            for file, mine in zip(_names(len(shards)), shards, strict=True):
                tensors = {name: (shape, dtypes[weight.name]) for weight in mine for name, shape in weight.parts}
                sizes[file] = {name: prod(shape) * dtype.itemsize for name, (shape, dtype) in tensors.items()}
                shard = Shard(making.folder / file, tensors)
                open_files.callback(shard.close)
                files |= {weight.name: shard for weight in mine}

            def move(weight: Weight) -> Entry:
                known = making.written.get(weight.name)
                if known and all(files[weight.name].digest(part.name) == part.digest for part in known.parts):
                    return known
                read = partial(source.checkpoint.rows, source.keys[weight.key], weight.index)
                entry = export_weight(weight, dtypes[weight.name], read, files[weight.name].write)
                making.wrote(entry)
                return entry

            def moved(weight: Weight) -> None:
                nonlocal written
                written += _bytes(weight, dtypes[weight.name])
                progress(written, total)

            made = {entry.megatron: entry for entry in each(move, _in_turn(shards), moved)}
        if len(shards) > 1:
            write_index(making.folder, sizes)
        _write_beside(source, making.folder, tokenizer, set(dtypes.values()))
        account = [made[weight.name] for weight in source.weights]
        write_account(making.folder, account)
        making.finish()
    return account


def write_account(folder: Path, account: list[Entry], **more: Any) -> None:
    (folder / RECORD).mkdir(exist_ok=True)
    content = {**more, "weights": [asdict(entry) for entry in account]}
    (folder / RECORD / ACCOUNT).write_text(json.dumps(content, indent=1))


def _bytes(weight: Weight, dtype: torch.dtype) -> int:
    return weight.elements * dtype.itemsize


def _shards(weights: list[Weight], dtypes: dict[str, torch.dtype], most: int) -> Iterator[list[Weight]]:
    """Weights by file, in their order. One that is larger than a file may be has a file of its own."""
    shard: list[Weight] = []
    size = 0
    for weight in weights:
        more = _bytes(weight, dtypes[weight.name])
        if shard and size + more > most:
            yield shard
            shard, size = [], 0
        shard.append(weight)
        size += more
    yield shard


def _in_turn(shards: list[list[Weight]]) -> list[Weight]:
    """From every file at the same pace, so that they end together."""
    placed = [(number / len(mine), weight) for mine in shards for number, weight in enumerate(mine)]
    return [weight for _, weight in sorted(placed, key=lambda item: item[0])]


def _names(count: int) -> list[str]:
    """As transformers calls them."""
    if count == 1:
        return [SINGLE]
    return [f"model-{number + 1:05d}-of-{count:05d}.safetensors" for number in range(count)]


def _write_beside(source: MegatronModel, folder: Path, tokenizer: Path | None, dtypes: set[torch.dtype]) -> None:
    """config.json, generation_config.json, the tokenizer."""
    for place in (source.beside, tokenizer):
        if place:
            copy_beside(place, folder)
    fields = dict(source.fields)
    raw = folder / "config.json"
    if source.beside and raw.exists():
        fields = json.loads(raw.read_text())  # in its own words, without defaults
    # of several the narrow one: the wide ones are those few weights that need it
    name = str(min(dtypes, key=lambda dtype: dtype.itemsize)).removeprefix("torch.")
    key = "torch_dtype" if "torch_dtype" in fields else "dtype"
    if fields.get(key) != name or not source.beside or not raw.exists():
        fields[key] = name
        raw.write_text(json.dumps(fields, indent=2) + "\n")
    generation = folder / "generation_config.json"
    if not generation.exists():
        words = {name: fields[name] for name in ("eos_token_id", "pad_token_id") if fields.get(name) is not None}
        generation.write_text(json.dumps({"do_sample": True, **words}, indent=2) + "\n")


def files_beside(source: Path) -> list[Path]:
    """All that a Hugging Face folder holds but weights: config, generation config, tokenizer, templates."""
    return [
        path
        for path in sorted(source.iterdir())
        if path.is_file() and path.name != MANIFEST and not path.name.endswith(WEIGHTS)
    ]


def copy_beside(source: Path, target: Path) -> None:
    """A config.json that is there stays: a tokenizer's folder may have another model's."""
    for path in files_beside(source):
        if path.name != "config.json" or not (target / path.name).exists():
            shutil.copyfile(path, target / path.name)
