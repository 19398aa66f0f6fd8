"""Print a checkpoint's `.metadata` as JSON, one line per tensor.

    python -m baton.tasks.convert.read_metadata CPU_SECONDS MEMORY_BYTES < .metadata

This is a child process of tasks/convert/metadata.py with limited CPU time and address space. The exit code is 0, or 1
with the reason on stderr. Standard library only.
"""

import gc
import json
import re
import resource
import sys
from collections.abc import Iterator

from baton.tasks.convert.pickles import Call, Name, Pairs, PickleError, Value, kind, load, shown

LARGEST = 2**63 - 1  # largest size, in elements or bytes
MOST_AXES = 16
LONGEST = 1000  # characters in the name of a tensor or file

_METADATA = "torch.distributed.checkpoint.metadata."
_PLANNER = "torch.distributed.checkpoint.planner."
_STORAGE = "torch.distributed.checkpoint.filesystem._StorageInfo"
_NAMES = {
    *(
        _METADATA + name
        for name in (
            "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
            "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
        )
    ),
    *(_PLANNER + name for name in ("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData", "BytesIOWriteData")),
    _STORAGE,
    "torch.Size",
    "torch.serialization._get_layout",
    "collections.OrderedDict",
    "builtins.getattr",  # for a member of an enumeration, as pickled by Python 3.11.0 to 3.11.3 (Debian 12)
    "pathlib.PosixPath",
    "pathlib.Path",
    "pathlib._local.PosixPath",  # Python 3.13
}  # fmt: skip
_DTYPE = re.compile(r"torch\.((?:b?float|q?u?int|complex|bits)\d\w*|bool)")

Place = tuple[str, int, int]  # file, offset and length in bytes


def allowed(name: str) -> bool:
    """Return whether a `.metadata` may contain the name. Names are never called, but torch writes only these."""
    return name in _NAMES or _DTYPE.fullmatch(name) is not None


def tensors(content: bytes) -> Iterator[tuple[str, str, list[int], list[list[object]]]]:
    """Yield (name, dtype, shape, chunks) of each tensor; a chunk is [start, shape, file, offset, length]. Raises
    PickleError."""
    metadata = load(content, allowed)
    if not (isinstance(metadata, Call) and metadata.name == f"{_METADATA}Metadata"):
        raise PickleError(f"contains a {kind(metadata)}, not a checkpoint's metadata")
    fields = _state(metadata, "Metadata")
    places = {}
    for index, info in _pairs(fields.get("storage_data"), "storage_data"):
        key = _index(index)
        if key in places:
            raise PickleError(f"has two places for {key[0]} at {key[1]}")
        places[key] = _place(info, key[0])
    left = len(places)  # each chunk needs its own place, since tensors may not share a list of chunks
    for name, about in _named(fields.get("state_dict_metadata"), "state_dict_metadata").items():
        if isinstance(about, Call) and about.name == f"{_METADATA}BytesStorageMetadata":
            continue
        about = _state(about, "TensorStorageMetadata")
        chunks = _list(about.get("chunks"), f"the chunks of {name}")
        left -= len(chunks)
        if left < 0:
            raise PickleError("has more chunks of tensors than places for them")
        size = _size(about.get("size"), f"the size of {name}")
        yield name, _dtype(about.get("properties"), name), size, [_chunk(chunk, name, places) for chunk in chunks]


def _chunk(chunk: Value, name: str, places: dict[tuple[str, tuple[int, ...] | None], Place]) -> list[object]:
    fields = _state(chunk, "ChunkStorageMetadata")
    start = _size(fields.get("offsets"), f"the offsets of a chunk of {name}")
    shape = _size(fields.get("sizes"), f"the sizes of a chunk of {name}")
    place = places.get((name, tuple(start)))
    if place is None:
        raise PickleError(f"does not say where the chunk of {name} at {start} is stored")
    return [start, shape, *place]


def _index(index: Value) -> tuple[str, tuple[int, ...] | None]:
    fields = _state(index, "MetadataIndex")
    name, offset = _text(fields.get("fqn"), "the name of a tensor"), fields.get("offset")
    return name, None if offset is None else tuple(_size(offset, f"the offsets of a chunk of {name}"))


def _place(info: Value, name: str) -> Place:
    fields = _state(info, _STORAGE)
    if fields.get("transform_descriptors"):
        raise PickleError(f"stores {name} transformed (compressed or encrypted), which cannot be read")
    file = _text(fields.get("relative_path"), f"the file of {name}")
    return (
        file,
        _int(fields.get("offset"), f"the offset of {name}"),
        _int(fields.get("length"), f"the length of {name}"),
    )


def _dtype(properties: Value, name: str) -> str:
    """Return the dtype, which is the first item of TensorProperties' state."""
    match properties:
        case Call(name=f, state=(Name(name=dtype), *_)) if f == f"{_METADATA}TensorProperties":
            if _DTYPE.fullmatch(dtype):
                return dtype.removeprefix("torch.")
    raise PickleError(f"has no dtype for {name}: {kind(properties)}")


def _state(value: Value, expected: str) -> dict[str, Value]:
    """Return an object's attributes."""
    full = expected if "." in expected else _METADATA + expected
    if not (isinstance(value, Call) and value.name == full):
        raise PickleError(f"has {kind(value)} where a {expected.rpartition('.')[2]} is expected")
    return _named(value.state, f"the attributes of a {expected.rpartition('.')[2]}")


def _named(value: Value, what: str) -> dict[str, Value]:
    items: dict[str, Value] = {}
    for key, item in _pairs(value, what):
        key = _text(key, f"a key in {what}")
        if key in items:
            raise PickleError(f"has {key} twice in {what}")
        items[key] = item
    return items


def _pairs(value: Value, what: str) -> list[tuple[Value, Value]]:
    if not isinstance(value, Pairs):
        raise PickleError(f"has {kind(value)} for {what}, not a dict")
    return value.items


def _list(value: Value, what: str) -> list[Value]:
    if not isinstance(value, list):
        raise PickleError(f"has {kind(value)} for {what}, not a list")
    return value


def _text(value: Value, what: str) -> str:
    if not (isinstance(value, str) and 1 <= len(value) <= LONGEST and value.isprintable()):
        given = ascii(shown(value)) if isinstance(value, str) else kind(value)
        raise PickleError(f"has {given} for {what}, not printable text of up to {LONGEST} characters")
    return value


def _int(value: Value, what: str) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST:
        given = "an int out of range" if type(value) is int else kind(value)
        raise PickleError(f"has {given} for {what}, not an int from 0 to 2^63 - 1")
    return value


def _size(value: Value, what: str) -> list[int]:
    """Return the numbers of torch.Size((…))."""
    if isinstance(value, Call) and value.name == "torch.Size" and len(value.arguments) == 1:
        value = value.arguments[0]
    if not isinstance(value, (tuple, list)) or len(value) > MOST_AXES:
        raise PickleError(f"has {kind(value)} for {what}, not a torch.Size of up to {MOST_AXES} axes")
    return [_int(item, what) for item in value]


def main() -> None:
    seconds, memory = int(sys.argv[1]), int(sys.argv[2])
    for what, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(what)[1]  # may be lowered, never raised
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    gc.disable()  # all objects live until the end
    try:
        content = sys.stdin.buffer.read()
        room = 2 * len(content) + 1000  # the output is not much longer than the pickle
        for tensor in tensors(content):
            line = json.dumps(tensor)
            room -= len(line)
            if room < 0:
                raise PickleError("repeats the same names and sizes too often")
            print(line)
    except PickleError as error:
        sys.exit(str(error))
    except MemoryError:
        sys.exit(f"needs more than {memory >> 20} MiB of memory to be read; no checkpoint's metadata does")


if __name__ == "__main__":
    main()
