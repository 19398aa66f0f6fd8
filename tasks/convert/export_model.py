"""Export a Megatron model to a Hugging Face folder with safetensors shards, config, tokenizer and generation config."""

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch

from baton.tasks.convert.mapping import Weight
from baton.tasks.convert.megatron_model import MegatronModel
from baton.tasks.convert.partial_dir import Partial
from baton.tasks.convert.safetensors_files import Shard, write_index
from baton.tasks.convert.target import ACCOUNT
from baton.tasks.convert.transfer import Entry, cast, export_weight, map_weights, size
from baton.tasks.convert.unconverted_files import WEIGHTS, adapter_problem
from baton.tasks.core.manifest import MANIFEST, RECORD
from baton.tasks.models.errors import ConversionError
from baton.tasks.models.fields import generation_problems, read_json
from baton.tasks.models.hf_files import GENERATION, INDEX, SINGLE, HFModelFiles
from baton.tasks.models.tokenizer_files import TEMPLATES
from baton.tasks.models.turns import with_ends

Progress = Callable[[int, int], None]  # bytes done, bytes total


@dataclass(frozen=True)
class ExportOptions:
    dtype: str | None = None  # one of DTYPES; None: unchanged
    max_shard_bytes: int = 5_000_000_000
    replace: bool = False  # whether to replace an existing target


def export_partial(
    source: MegatronModel, target: Path, options: ExportOptions, tokenizer: Path | None, files: int
) -> Partial:
    """Prepare the export into `files` safetensors files, before anything is written. Raises ConversionError if `target`
    may not be written, or if a file that would be copied is damaged."""
    places = [place for place in (source.beside, tokenizer) if place]
    for place in places:
        if problem := adapter_problem(place):
            raise ConversionError(problem)
        check_beside(place)
    names = [*_names(files), INDEX, "config.json", "generation_config.json", f"{RECORD}/{ACCOUNT}"]
    names += [path.name for place in places for path in files_beside(place)]
    inputs = [source.folder, source.checkpoint.folder, *places]
    return Partial(target, names, inputs, options.replace)


def export_model(
    source: MegatronModel, target: Path, options: ExportOptions, tokenizer: Path | None, progress: Progress
) -> list[Entry]:
    """Write `target`, and return an entry for each weight, as in record/conversion.json. Raises ConversionError and
    OSError; `target`.partial then has the written files, and the next call starts from the beginning."""
    dtypes = {name: cast(name, dtype, options.dtype) for name, dtype in source.dtypes().items()}
    shards = shards_of(source.weights, dtypes, options)
    with export_partial(source, target, options, tokenizer, len(shards)) as making:
        making.check_space(size(source.weights, dtypes))
        sizes: dict[str, dict[str, int]] = {}
        with ExitStack() as open_files:
            # All files are open at once, since the kernel serializes writes to one file
            files: dict[str, Shard] = {}
            for file, members in zip(_names(len(shards)), shards, strict=True):
                tensors = {name: (shape, dtypes[weight.name]) for weight in members for name, shape in weight.parts}
                sizes[file] = {name: prod(shape) * dtype.itemsize for name, (shape, dtype) in tensors.items()}
                shard = Shard(making.folder / file, tensors)
                open_files.callback(shard.close)
                files |= {weight.name: shard for weight in members}

            def move(weight: Weight) -> Entry:
                read = partial(source.checkpoint.rows, source.keys[weight.key], weight.index)
                return export_weight(weight, dtypes[weight.name], read, files[weight.name].write)

            moved = map_weights(move, _interleaved(shards), lambda weight: size([weight], dtypes), progress)
            entries = {entry.megatron: entry for entry in moved}
        if len(shards) > 1:
            write_index(making.folder, sizes)
        _write_beside(source, making.folder, tokenizer, set(dtypes.values()), options.dtype is not None)
        account = [entries[weight.name] for weight in source.weights]
        write_account(making.folder, account)
        making.finish()
    return account


def write_account(folder: Path, account: list[Entry], **more: Any) -> None:
    (folder / RECORD).mkdir()
    content = {**more, "weights": [asdict(entry) for entry in account]}
    (folder / RECORD / ACCOUNT).write_text(json.dumps(content, indent=1))


def shards_of(weights: list[Weight], dtypes: dict[str, torch.dtype], options: ExportOptions) -> list[list[Weight]]:
    """Return the weights of each safetensors file, in order. A weight larger than a shard gets its own file."""
    shards: list[list[Weight]] = [[]]
    filled = 0
    for weight in weights:
        more = size([weight], dtypes)
        if shards[-1] and filled + more > options.max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(weight)
        filled += more
    return shards


def _interleaved(shards: list[list[Weight]]) -> list[Weight]:
    """Interleave the weights of all files at the same pace, so that the files finish together."""
    placed = [(number / len(shard), weight) for shard in shards for number, weight in enumerate(shard)]
    return [weight for _, weight in sorted(placed, key=lambda item: item[0])]


def _names(count: int) -> list[str]:
    """Return the file names that transformers uses."""
    if count == 1:
        return [SINGLE]
    return [f"model-{number + 1:05d}-of-{count:05d}.safetensors" for number in range(count)]


def _write_beside(
    source: MegatronModel, folder: Path, tokenizer: Path | None, dtypes: set[torch.dtype], cast: bool
) -> None:
    """Write config.json, generation_config.json and the tokenizer. An imported model's config.json is copied byte for
    byte unless its weights are cast."""
    if source.beside:
        copy_beside(source.beside, folder)
    if tokenizer:  # it may be another model's folder
        copy_beside(tokenizer, folder, without=("config.json", "generation_config.json"))
    config = folder / "config.json"
    if source.beside is None or not config.exists():
        config.write_text(json.dumps(source.fields, indent=2) + "\n")
    if cast or not source.imported:
        set_dtype(config, dtypes)
    generation = folder / GENERATION
    if not generation.exists():
        generation.write_text(generation_config(json.loads(config.read_text()), tokenizer, source.folder))


def generation_config(fields: dict[str, Any], tokenizer: Path | None, trained: Path | None = None) -> str:
    """Return generation_config.json for a model without one: that of the initial model in `trained`, if there is one,
    with the end tokens of config.json and the tokenizer's folder."""
    tokens = {name: fields[name] for name in ("eos_token_id", "pad_token_id") if fields.get(name) is not None}
    begun_with = _generation(trained)
    config = begun_with or {"do_sample": True, **tokens}
    before = config.get("eos_token_id")
    ends = HFModelFiles({}, _generation(tokenizer)).eos_of_generation
    after = with_ends(before, with_ends(tokens.get("eos_token_id"), ends))
    if after and after not in (before, [before]):
        config = config | {"eos_token_id": after}
    elif begun_with and trained:
        return (trained / GENERATION).read_text()
    return json.dumps(config, indent=2) + "\n"


def _generation(folder: Path | None) -> dict[str, Any]:
    """Return a folder's generation_config.json, or {} if there is none."""
    return read_json(folder / GENERATION) if folder and (folder / GENERATION).exists() else {}


def export_notes(source: MegatronModel, options: ExportOptions, tokenizer: Path | None) -> list[str]:
    """Return notes for the user about an export that is possible."""
    name, configured = dtype_name(set(source.dtypes().values())), source.fields.get("dtype")
    places = [place for place in (source.beside, tokenizer) if place]
    notes = [f"{place / TEMPLATES} is left out: copy it" for place in places if (place / TEMPLATES).is_dir()]
    if source.imported and options.dtype is None and configured != name:
        notes.append(f"config.json says dtype {configured!r}, but the weights are {name}; it is left as imported")
    return notes


def dtype_name(dtypes: set[torch.dtype]) -> str:
    """Return config.json's dtype for a model: the narrowest of several, since only a few weights need a wider one."""
    return str(min(dtypes, key=lambda dtype: dtype.itemsize)).removeprefix("torch.")


def set_dtype(config: Path, dtypes: set[torch.dtype]) -> None:
    """Set the dtype in a config.json without other changes. A file that already has it is not written."""
    fields = json.loads(config.read_text())
    key = "torch_dtype" if "torch_dtype" in fields else "dtype"
    if fields.get(key) != dtype_name(dtypes):
        fields[key] = dtype_name(dtypes)
        config.write_text(json.dumps(fields, indent=2) + "\n")


def files_beside(source: Path) -> list[Path]:
    """Return the files of a Hugging Face folder other than weights: config, generation config, tokenizer and
    templates."""
    return [
        path
        for path in sorted(source.iterdir())
        if path.is_file() and path.name != MANIFEST and not path.name.endswith(WEIGHTS)
    ]


def check_beside(folder: Path) -> None:
    """Raise ConversionError for files to copy that are unreadable, not valid JSON, or in the way of the conversion's
    record."""
    wrong = []
    for path in files_beside(folder):
        if path.name == RECORD:
            wrong.append(f"{path}: a converted model has a folder of this name; rename the file, or delete it")
        try:
            content = path.read_bytes()
            if path.name == "generation_config.json":
                wrong += [f"{folder}: {problem}" for problem in generation_problems(read_json(path))]
            elif path.suffix == ".json":
                json.loads(content)
        except (OSError, ValueError, RecursionError) as error:
            wrong.append(f"{path}: cannot be read ({error})")
    if wrong:
        raise ConversionError("; ".join(wrong))


def copy_beside(source: Path, target: Path, without: tuple[str, ...] = ()) -> None:
    for path in files_beside(source):
        if path.name not in without:
            shutil.copyfile(path, target / path.name)
