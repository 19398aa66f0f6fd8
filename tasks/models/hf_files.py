"""The properties of a Hugging Face model, read from its files without loading it: config.json, generation_config.json,
the tokenizer's files, and the headers of its safetensors (https://github.com/huggingface/safetensors#format).

    model = read_model(files_in(folder))      or find(address)
    model.problems()                          why neither Transformers nor vLLM can use it as it is
    model.positions, model.head_sizes, model.eos_ids, ...

Neither torch nor Transformers is needed. Facts that only the model's class has, such as the names that its tensors
must have, are checked by tasks/convert/check_model.py.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from baton.infra.storage.address import File, files_in
from baton.infra.storage.unique_keys import strict_json, unique
from baton.tasks.models.fields import generation_problems
from baton.tasks.models.tokenizer_files import CONFIG as TOKENIZER_CONFIG
from baton.tasks.models.tokenizer_files import SPECIAL, TOKENIZER, token_ids, with_special

CONFIG, GENERATION = "config.json", "generation_config.json"
HUGGINGFACE = "huggingface"  # the folder with these in a Megatron checkpoint that was imported
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"

FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # bytes
MOST_HEADER = 100 << 20  # bytes, as in the safetensors library
READERS = 8  # files that are read at a time
# Buffers of old checkpoints (masks, positions), which models recompute
BUFFERS = (".attn.bias", ".attention.bias", ".masked_bias", ".position_ids", "rotary_emb.inv_freq")
# Fields of config.json by their usual name, and their names in older families
OTHER_NAMES = {
    "max_position_embeddings": ("n_positions",),
    "hidden_size": ("n_embd", "d_model"),
    "head_dim": ("kv_channels",),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "attention_heads"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_k", "moe_topk"),
}

T = TypeVar("T")


class Tensor(NamedTuple):
    """A tensor in a safetensors file."""

    dtype: str  # "BF16"
    shape: tuple[int, ...]
    file: File
    begin: int  # byte in the file
    end: int


class ModelFilesError(Exception):
    """A file of a model cannot be read; the message names it."""


@dataclass(frozen=True)
class HFModelFiles:
    """The content of a model's files. A missing file has no fields."""

    config: dict[str, Any]
    generation: dict[str, Any] = field(default_factory=dict)
    tokenizer_config: dict[str, Any] = field(default_factory=dict)
    vocabulary: dict[str, int] = field(default_factory=dict, repr=False)  # token to id, of tokenizer.json
    tensors: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def architecture(self) -> str | None:
        """The class in config.json, by which vLLM chooses its own."""
        named = self.config.get("architectures")
        return named[0] if isinstance(named, list) and named and isinstance(named[0], str) else None

    def number(self, name: str) -> int | None:
        """Return an integer of config.json by its usual name."""
        values = (self.config.get(each) for each in (name, *OTHER_NAMES.get(name, ())))
        return next((value for value in values if type(value) is int), None)

    @property
    def positions(self) -> int | None:
        return self.number("max_position_embeddings")

    @property
    def head_sizes(self) -> set[int]:
        """The sizes of its attention heads; empty if they do not follow from config.json alone."""
        if self.latent:
            return set()
        hidden, heads = self.number("hidden_size"), self.number("num_attention_heads")
        size = self.number("head_dim") or (hidden // heads if hidden and heads else None)
        return {each for each in (size, self.number("global_head_dim")) if each}

    @property
    def latent(self) -> bool:
        """True for multi-head latent attention, which DeepSeek's models have."""
        return self.config.get("kv_lora_rank") is not None

    @property
    def dtype(self) -> str:
        """The float type of most of the weights as they are stored, such as "BF16"."""
        elements = dict.fromkeys(FLOATS, 0)
        for tensor in self.tensors.values():
            if tensor.dtype in elements:
                elements[tensor.dtype] += prod(tensor.shape)
        return max(elements, key=lambda name: elements[name])

    @property
    def widest(self) -> str:
        """The float type that holds every weight exactly."""
        return max({tensor.dtype for tensor in self.tensors.values()} & FLOATS.keys(), key=lambda name: FLOATS[name])

    @property
    def weight_files(self) -> list[str]:
        """The names of the files from which the weights are read."""
        names = {tensor.file.name for tensor in self.tensors.values()}
        return sorted(names if names == {SINGLE} else names | {INDEX})

    @property
    def eos_of_generation(self) -> list[int]:
        return _ids(self.generation.get("eos_token_id"))

    @property
    def eos_of_tokenizer(self) -> int | None:
        token = self.tokenizer_config.get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        return self.vocabulary.get(text) if isinstance(text, str) else None

    @property
    def eos_ids(self) -> list[int]:
        """The tokens that end a generation: those of config.json, generation_config.json and the tokenizer."""
        ids = (*_ids(self.config.get("eos_token_id")), *self.eos_of_generation, *_ids(self.eos_of_tokenizer))
        return list(dict.fromkeys(ids))

    @property
    def end_of_text(self) -> int | None:
        """The token between documents: the first of config.json, or else the tokenizer's."""
        candidates = (*_ids(self.config.get("eos_token_id")), *_ids(self.eos_of_tokenizer), *self.eos_ids)
        return next(iter(candidates), None)

    def problems(self) -> list[str]:
        """Return all problems, each with a way out."""
        problems = [self._quantized()] if self.tensors else []
        problems += generation_problems(self.generation)
        if (self.positions or 0) < 1:
            problems.append(f"{CONFIG} has no max_position_embeddings: choose a text decoder with a limited context")
        if self.eos_of_tokenizer is None and (self.vocabulary or not self.eos_ids):
            known = f"; {CONFIG} or {GENERATION} has {listing([*map(str, self.eos_ids)])}" if self.eos_ids else ""
            problems.append(
                f"{TOKENIZER_CONFIG} says of no token of {TOKENIZER} that it ends a text: set eos_token{known}"
            )
        rows, needed = self.number("vocab_size"), 1 + max(self.vocabulary.values(), default=-1)
        if rows is not None and needed > rows:
            problems.append(f"its vocab_size {rows} is smaller than its tokenizer's {needed}")
        elif rows is not None and (odd := [each for each in self.eos_ids if not 0 <= each < rows]):
            problems.append(f"its eos_token_id {odd[0]} is not from 0 to {rows - 1}, as its vocab_size {rows} says")
        heads, shared = self.number("num_attention_heads"), self.number("num_key_value_heads")
        if heads and shared is not None and (shared < 1 or heads % shared):
            problems.append(f"its num_attention_heads {heads} is no multiple of its num_key_value_heads {shared}")
        experts, used = self.number("num_experts"), self.number("num_experts_per_tok")
        if experts and used is not None and not 1 <= used <= experts:
            problems.append(f"its num_experts_per_tok {used} is not from 1 to {experts}, its number of experts")
        return [problem for problem in problems if problem]

    def _quantized(self) -> str | None:
        quantization = self.config.get("quantization_config") or self.config.get("compression_config")
        if quantization:
            method = quantization.get("quant_method") if isinstance(quantization, dict) else None
            return f"its weights are quantized ({CONFIG}: {method or quantization!s:.80}): choose the original ones"
        odd = sorted(
            f"{name} ({tensor.dtype})"
            for name, tensor in self.tensors.items()
            if tensor.dtype not in FLOATS and not name.endswith(BUFFERS)
        )
        if odd:
            return f"its tensors must be of type {', '.join(FLOATS)}; {listing(odd)}: choose the original weights"
        return None


def _ids(value: Any) -> list[int]:
    """Return the ids in a field `eos_token_id`, which may be a number or a list."""
    return [number for number in (value if isinstance(value, list) else [value]) if type(number) is int]


def listing(names: list[str], most: int = 5) -> str:
    """Return the first names, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@lru_cache(4)
def read_model(files: tuple[File, ...]) -> HFModelFiles:
    """Read the files of a folder, local or at an address, and cache the result until one of them changes. Raises
    ModelFilesError, StorageError."""
    by_name = {file.name: file for file in files}
    names = (CONFIG, GENERATION, TOKENIZER_CONFIG, SPECIAL, TOKENIZER)
    config, generation, tokenizer_config, special, tokenizer = (
        _json(by_name[name]) if name in by_name else {} for name in names
    )
    vocabulary = _read(by_name[TOKENIZER], lambda: token_ids(tokenizer)) if tokenizer else {}
    return HFModelFiles(config, generation, with_special(tokenizer_config, special), vocabulary, tensors_of(files))


def model_in(folder: Path) -> HFModelFiles:
    """Read the model in a local folder. Raises ModelFilesError."""
    return read_model(tuple(files_in(folder)))


def tensors_in(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a local folder by name. Raises ModelFilesError."""
    return tensors_of(files_in(folder))


def tensors_of(in_folder: Iterable[File]) -> dict[str, Tensor]:
    """Return the tensors of a folder with these files by name. Raises ModelFilesError."""
    files = {file.name: file for file in in_folder}
    listed = _listed(files)
    with ThreadPoolExecutor(READERS) as pool:
        headers = list(pool.map(lambda name: _header(files[name]), listed))
    tensors: dict[str, Tensor] = {}
    for file, header in zip(listed, headers, strict=True):
        names = listed[file]
        if names is not None and (wrong := _unlike_index(names, header.keys(), listed)):
            raise ModelFilesError(f"{files[file].place}: {wrong}: take both files from one revision")
        tensors |= header
    return tensors


def _unlike_index(names: Set[str], found: Set[str], listed: dict[str, set[str] | None]) -> str:
    """Describe the differences between the tensors of a file and those that the index lists for it; empty if none."""
    problems = [f"lacks {listing(missing)}, listed for it in {INDEX}"] if (missing := sorted(names - found)) else []
    elsewhere = {name: file for file, each in listed.items() for name in each or ()}
    for place in sorted({elsewhere.get(name, "") for name in found - names}):
        more = listing(sorted(name for name in found - names if elsewhere.get(name, "") == place))
        problems.append(f"has {more}, which {INDEX} {f'says is in {place}' if place else 'does not list'}")
    return "; ".join(problems)


def _listed(files: dict[str, File]) -> dict[str, set[str] | None]:
    """Return the weight files, and the tensors in each according to the index. Raises ModelFilesError."""
    if INDEX not in files:
        others = [name for name in files if name.endswith(".safetensors") and not name.startswith("adapter_model")]
        if SINGLE not in files and others:
            place = files[others[0]].place.rpartition("/")[0]
            raise ModelFilesError(
                f"{place}: has {listing(others)}, and neither {SINGLE} nor {INDEX}, which says which tensor is in "
                f"which file: add the index from where they are from, or rename a single file to {SINGLE}"
            )
        return {SINGLE: None} if SINGLE in files else {}
    index = _json(files[INDEX])
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise ModelFilesError(f"{files[INDEX].place}: has no weight_map of tensors and files")
    weight_files: dict[str, set[str] | None] = dict.fromkeys(sorted({*weight_map.values()}))
    if SINGLE in files and SINGLE not in weight_files:  # Transformers reads it, and vLLM those of the index
        raise ModelFilesError(f"{files[INDEX].place}: lists other files than {SINGLE}: remove those or {SINGLE}")
    if missing := [file for file in weight_files if file not in files]:
        raise ModelFilesError(f"{files[INDEX].place}: lists {listing(missing)}, which the folder does not have")
    if not isinstance(index.get("metadata"), dict):
        raise ModelFilesError(
            f"{files[INDEX].place}: has no metadata, without which Transformers cannot read it: add {{}}"
        )
    return {file: {name for name, place in weight_map.items() if place == file} for file in weight_files}


def _json(file: File) -> dict[str, Any]:
    def content() -> Any:
        with file.open() as stream:
            return strict_json(stream.read())

    content = _read(file, content)
    if not isinstance(content, dict):
        raise ModelFilesError(f"{file.place}: is not a JSON object")
    return content


def _header(file: File) -> dict[str, Tensor]:
    def tensors() -> dict[str, Tensor]:
        with file.open() as stream:
            size = int.from_bytes(stream.read(8), "little")
            if file.size < 8:
                raise ValueError(f"it has {file.size} bytes, fewer than a header")
            if size > min(MOST_HEADER, file.size):
                raise ValueError(f"its header would have {size} bytes")
            header = json.loads(stream.read(size), object_pairs_hook=unique)
        header.pop("__metadata__", None)
        begin = 8 + size
        tensors = {name: _tensor(file, begin, about) for name, about in header.items()}
        if begin + max((about["data_offsets"][1] for about in header.values()), default=0) != file.size:
            raise ValueError("it is truncated, or longer than its header says")
        return tensors

    return _read(file, tensors)


def _tensor(file: File, begin: int, about: dict[str, Any]) -> Tensor:
    first, last = about["data_offsets"]
    return Tensor(str(about["dtype"]), tuple(map(int, about["shape"])), file, begin + first, begin + last)


def _read(file: File, work: Callable[[], T]) -> T:
    try:
        return work()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelFilesError(f"{file.place}: cannot be read ({error})") from error


def same_values(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same type, shape and bytes."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return all(a == b for a, b in zip(_blocks(one), _blocks(other), strict=True))


def _blocks(tensor: Tensor, size: int = 1 << 22) -> Iterator[bytes]:
    with tensor.file.open() as stream:
        stream.seek(tensor.begin)
        for at in range(tensor.begin, tensor.end, size):
            yield stream.read(min(size, tensor.end - at))
