"""Handcrafted damage to the pickles and archives of a checkpoint, with the expected error messages."""

import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex

NORM = "decoder.final_layernorm.weight"

Damage = Callable[[Path], None]


# .metadata as opcodes


def metadata_bytes(content: bytes) -> Damage:
    def write(folder: Path) -> None:
        (folder / ".metadata").write_bytes(content)

    return write


def among_the_metadata(opcodes: bytes) -> Damage:
    """A valid .metadata, except for its planner_data."""

    def write(folder: Path) -> None:
        content = metadata(folder)
        content.planner_data = b"PLANNER"
        found = pickle.dumps(content, protocol=3)
        place = pickle.dumps(b"PLANNER", protocol=3)[2:-1].split(b"q")[0]
        assert found.count(place) == 1
        (folder / ".metadata").write_bytes(found.replace(place, opcodes))

    return write


def text(words: str) -> bytes:
    return b"X" + struct.pack("<I", len(words)) + words.encode()


PATH = b"cpathlib\nPosixPath\n"
OWNED = b"}" + text("name") + text("OWNED") + b"s"
SIZE = b"ctorch\nSize\n"
GETATTR = b"cbuiltins\ngetattr\n"
FORMAT = b"ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"

OPCODES: dict[str, tuple[bytes, str]] = {
    "attributes of a class": (PATH + OWNED + b"b", r"sets the attributes of the name pathlib\.PosixPath"),
    "attributes of a class, by slots": (PATH + b"N" + OWNED + b"\x86b", r"sets the attributes of the name"),
    "attributes twice": (PATH + b")\x81" + OWNED + b"b" + OWNED + b"b", r"sets the attributes of pathlib\.PosixPath"),
    "attributes of text": (text("x") + OWNED + b"b", r"sets the attributes of str"),
    "a call of text": (text("x") + b")R", r"calls str with tuple"),
    "a call with a list": (SIZE + b"]R", r"calls the name torch\.Size with list"),
    "a call of what was called": (SIZE + b")R)R", r"calls torch\.Size with tuple"),
    "an attribute of a value": (
        GETATTR + SIZE + b")R" + text("count") + b"\x86R",
        r"calls getattr with torch\.Size and str",
    ),
    "a private attribute": (
        GETATTR + SIZE + text("__base__") + b"\x86R",
        r"calls getattr with the name torch\.Size and str",
    ),
    "an attribute of an attribute": (
        GETATTR + SIZE + text("a.b") + b"\x86R",
        r"calls getattr with the name torch\.Size",
    ),
    "a call of an attribute": (GETATTR + SIZE + text("count") + b"\x86R)R", r"calls torch\.Size with tuple"),
    "an append to a path": (PATH + b")RNa", r"appends to pathlib\.PosixPath"),
    "a key of a path": (PATH + b")RNNs", r"sets 2 keys and values of pathlib\.PosixPath"),
    "a name on the stack": (text("os") + text("system") + b"\x93", r"imports os\.system; it was not executed"),
    "a name of numbers": (b"K\x00K\x00\x93", r"imports a name made of int and int"),
    "a name with dots": (b"cpathlib\nPath.home\n", r"imports pathlib\.Path\.home; it was not executed"),
    "a class of a file": (b"(ios\nsystem\n", r"has the opcode INST"),
    "a registered class": (b"\x82\x01", r"has the opcode EXT1"),
    "a giant number": (b"\x8b" + struct.pack("<i", 2**31 - 1), r"damaged or truncated"),
    "a negative length": (b"\x8b" + struct.pack("<i", -1), r"damaged or truncated"),
    "a number of many digits": (b"I" + b"9" * 100_000 + b"\n", r"damaged or truncated|has the opcode INT"),
    "a giant text": (b"\x8d" + struct.pack("<Q", 2**63 - 1), r"damaged or truncated"),
    "a text beyond all bounds": (b"\x8d" + struct.pack("<Q", 2**64 - 1), r"damaged or truncated"),
    "a giant bytearray": (b"\x96" + struct.pack("<Q", 2**40), r"damaged or truncated"),
    "a memo that is not there": (b"j" + struct.pack("<I", 2**32 - 1), r"damaged or truncated"),
    "a key without a value": (b"}(Nu", r"sets 1 keys and values of dict"),
    "a mark that is not there": (b"u" * 100, r"damaged or truncated|sets \d+ keys"),
    "an empty stack": (b"0" * 100, r"damaged or truncated"),
}


def chain_of_calls(depth: int) -> bytes:
    """Return the pickle of torch.Size((torch.Size((…),),))."""
    return (SIZE + b"q\x00" + b"h\x00" * depth) + b")" + b"R\x85" * depth + b"R"


def shared(levels: int) -> bytes:
    """Return the pickle of a tuple that contains the same tuple twice, and so on; a traversal takes 2^levels steps."""
    places = [struct.pack("<I", (1 << 20) + level) for level in range(levels)]
    return b"N" + b"".join(b"r" + place + b"j" + place + b"\x86" for place in places)


DEEP = 200_000
# Large pickles that are harmless unless they are traversed, and rare ones: with these in the metadata, the conversion
# is still correct
HARMLESS: dict[str, bytes] = {
    "deep tuples": b")" + b"\x85" * DEEP,
    "deep tuples as a key": b"})" + b"\x85" * DEEP + b"Ns",
    "deep lists": b"]" * DEEP + b"a" * (DEEP - 1),
    "deep dicts": b"}" + b"N}" * DEEP + b"s" * DEEP,
    "deep calls": chain_of_calls(DEEP),
    "shared tuples": shared(1000),
    "shared tuples as a key": b"}" + shared(1000) + b"Ns",
    "a list of itself": b"]q\x00h\x00a",
    "a member of an enumeration, as Debian 12's Python has it": GETATTR
    + FORMAT
    + text("TORCH_PRESERVE_FORMAT")
    + b"\x86R",
    "a giant place in the memo": b"Nr" + struct.pack("<I", 2**32 - 1),
}


# .metadata by content


def metadata(folder: Path) -> Metadata:
    found = pickle.loads((folder / ".metadata").read_bytes())
    assert isinstance(found, Metadata)
    return found


def changed(change: Callable[[Any], object]) -> Damage:
    def write(folder: Path) -> None:
        content = metadata(folder)
        change(content)
        (folder / ".metadata").write_bytes(pickle.dumps(content))

    return write


def chunks(*spans: tuple[int, int]) -> Damage:
    """Replace the last norm, which has 72 elements, by chunks in separate files."""

    def write(folder: Path) -> None:
        content = metadata(folder)
        about: Any = content.state_dict_metadata[NORM]
        about.chunks[:] = [ChunkStorageMetadata(torch.Size([at]), torch.Size([size])) for at, size in spans]
        for at, size in spans:
            path = folder / f"part_{at}.distcp"
            torch.save(torch.ones(max(size, 0), dtype=torch.bfloat16), path)
            content.storage_data[MetadataIndex(NORM, [at])] = _StorageInfo(path.name, 0, path.stat().st_size)
        (folder / ".metadata").write_bytes(pickle.dumps(content))

    return write


def norm(content: Any) -> Any:
    return content.state_dict_metadata[NORM]


def place(content: Any, name: str = NORM) -> _StorageInfo:
    found: _StorageInfo = content.storage_data[MetadataIndex(name, [0])]
    return found


def file_of_another_kind(make: Callable[[Path], object]) -> Damage:
    def write(folder: Path) -> None:
        changed(lambda content: setattr(place(content), "relative_path", "other"))(folder)
        make(folder / "other")

    return write


def renamed(name: object) -> Damage:
    return changed(lambda content: content.state_dict_metadata.update({name: content.state_dict_metadata.pop(NORM)}))


def giant(content: Any) -> None:
    norm(content).size = norm(content).chunks[0].sizes = torch.Size([2**62])


def sixteen_axes(content: Any) -> None:
    """A chunk in 16 dimensions takes 2^16 steps to place: a thousand of them, which fit into 120 kB, would take
    minutes."""
    ones, zeros = [1] * 15, [0] * 16
    norm(content).size = torch.Size([72, *ones])
    norm(content).chunks[:] = [ChunkStorageMetadata(torch.Size(zeros), torch.Size([72, *ones]))]
    place = content.storage_data.pop(MetadataIndex(NORM, [0]))
    content.storage_data[MetadataIndex(NORM, zeros)] = place


def in_another_s_place(content: Any) -> None:
    """Exchange the locations of two norms, which both have 72 elements of the same type."""
    names = [index for index in content.storage_data if index.fqn.endswith("layernorm.weight") and index.fqn != NORM]
    other = content.storage_data[names[0]]
    content.storage_data[MetadataIndex(NORM, [0])] = _StorageInfo(other.relative_path, other.offset, other.length)


SAID: dict[str, tuple[Damage, str]] = {
    "overlapping chunks with the right total": (chunks((0, 36), (24, 36)), r"overlap or leave gaps"),
    "a chunk below the tensor": (chunks((-8, 44), (36, 36)), r"an int out of range"),
    "a chunk beyond the tensor": (chunks((0, 36), (37, 35), (36, 1), (72, 1)), r"overlap or leave gaps"),
    "an empty chunk": (chunks((0, 72), (72, 0)), r"overlap or leave gaps"),
    "a chunk without axes": (
        changed(lambda content: setattr(norm(content).chunks[0], "sizes", torch.Size([]))),
        r"overlap or leave gaps",
    ),
    "a giant chunk": (changed(giant), r"cannot be stored in \d+ bytes"),
    "more axes than a weight has": (changed(sixteen_axes), r"has 16 axes; a weight has at most 4"),
    "many axes": (changed(lambda content: setattr(norm(content), "size", torch.Size([1] * 40))), r"up to 16 axes"),
    "a size that is text": (changed(lambda content: setattr(norm(content), "size", "72")), r"str for the size of"),
    "a size that is a truth": (changed(lambda content: setattr(norm(content), "size", (True,))), r"bool for the size"),
    "no chunks": (changed(lambda content: setattr(norm(content), "chunks", None)), r"NoneType for the chunks of"),
    "no dtype": (changed(lambda content: setattr(norm(content), "properties", None)), r"no dtype for"),
    "an offset below the file": (
        changed(lambda content: setattr(place(content), "offset", -1)),
        r"an int out of range",
    ),
    "an offset beyond all files": (changed(lambda content: setattr(place(content), "offset", 2**70)), r"out of range"),
    "a length that is a fraction": (changed(lambda content: setattr(place(content), "length", 1.5)), r"float for the"),
    "a transformed chunk": (
        changed(lambda content: setattr(place(content), "transform_descriptors", ["zstd"])),
        r"transformed \(compressed or encrypted\)",
    ),
    "two weights in one place": (changed(in_another_s_place), r"puts both .* at byte \d+ of "),
    "a name that is no text": (renamed(5), r"int for a key in state_dict_metadata"),
    "a name of two lines": (renamed("a\nb"), r"not printable text"),
    "a name that is half a character": (renamed("\ud800"), r"not printable text"),
    "a file of no name": (changed(lambda content: setattr(place(content), "relative_path", "a\0b")), r"not printable"),
    "a file of a long name": (
        changed(lambda content: setattr(place(content), "relative_path", "x" * 5000)),
        r"not printable text of up",
    ),
    "a pipe": (file_of_another_kind(os.mkfifo), r"other: is not a regular file"),
    "a folder": (file_of_another_kind(Path.mkdir), r"other: is not a regular file"),
}


# Archives


def norm_archive(folder: Path) -> Path:
    """Save the last norm in a separate file, to be damaged."""
    path = folder / "norm.distcp"
    torch.save(torch.ones(72, dtype=torch.bfloat16), path)
    moved(folder, path)
    return path


def moved(folder: Path, path: Path) -> None:
    info = _StorageInfo(path.name, 0, path.stat().st_size)
    changed(lambda content: content.storage_data.update({MetadataIndex(NORM, [0]): info}))(folder)


def zip_field(record: str, at: int, value: bytes, *, local: bool = True, directory: bool = True) -> Damage:
    """Overwrite a field of a record's headers. `at` is relative to the version needed for extraction, from where on
    both kinds of header have the same fields."""

    def write(folder: Path) -> None:
        path = norm_archive(folder)
        content = bytearray(path.read_bytes())
        with zipfile.ZipFile(path) as archive:
            info = next(info for info in archive.infolist() if info.filename.endswith(record))
            entry = content.index(info.filename.encode(), archive.start_dir) - 46
        for start, expected in ((info.header_offset + 4, local), (entry + 6, directory)):
            if expected:
                content[start + at : start + at + len(value)] = value
        path.write_bytes(content)

    return write


def rewritten(change: Callable[[dict[str, bytes]], object], **how: Any) -> Damage:
    """Write the same records to another archive."""

    def write(folder: Path) -> None:
        path = norm_archive(folder)
        with zipfile.ZipFile(path) as archive:
            records = {name: archive.read(name) for name in archive.namelist()}
        change(records)
        with zipfile.ZipFile(path, "w", **how) as archive:
            for name, content in records.items():
                archive.writestr(name, content)
        moved(folder, path)

    return write


def one_more(name: str) -> Damage:
    def write(folder: Path) -> None:
        path = norm_archive(folder)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(f"{archive.namelist()[0].split('/')[0]}/{name}", bytes(144))
        moved(folder, path)

    return write


def saved(tensor: object, **how: Any) -> Damage:
    def write(folder: Path) -> None:
        torch.save(tensor, folder / "norm.distcp", **how)
        moved(folder, folder / "norm.distcp")

    return write


def big_endian(records: dict[str, bytes]) -> None:
    records["norm/byteorder"] = b"big"


def pickle_of(words: bytes, other: bytes) -> Callable[[dict[str, bytes]], object]:
    def change(records: dict[str, bytes]) -> None:
        assert words in records["norm/data.pkl"]
        records["norm/data.pkl"] = records["norm/data.pkl"].replace(words, other)

    return change


def one_name(records: dict[str, bytes]) -> None:
    content = b"".join(records.values())
    records.clear()
    records["/"] = content


def nothing(records: dict[str, bytes]) -> None:
    pass


ARCHIVES: dict[str, tuple[Damage, str]] = {
    "encrypted numbers": (zip_field("/data/0", 2, b"\x09\x08"), r"flags of norm/data/0 are 0x809: encrypted"),
    "an encrypted pickle": (zip_field("data.pkl", 2, b"\x09\x08"), r"flags of norm/data\.pkl are 0x809"),
    "patched data": (zip_field("data.pkl", 2, b"\x28\x08"), r"flags of norm/data\.pkl"),
    "flags in one header alone": (zip_field("/data/0", 2, b"\x00\x00", directory=False), r"no record norm/data/0"),
    "deflated numbers that are not": (zip_field("/data/0", 4, b"\x08\x00"), r"data/0 is compressed"),
    "an unknown compression": (zip_field("data.pkl", 4, b"\x63\x00"), r"cannot be read"),
    "a version from the future": (zip_field("data.pkl", 0, b"\xff\xff"), r"cannot be read"),
    "another checksum": (zip_field("/data/0", 10, b"\0\0\0\0", local=False), r"the expected length"),
    "another size": (zip_field("/data/0", 14, b"\x10\0\0\0\x10\0\0\0", local=False), r"the expected length"),
    "numbers some bytes further on": (zip_field("/data/0", 24, b"\x40\x00", directory=False), r"the expected length"),
    "a longer name": (zip_field("/data/0", 22, b"\x10\x00", directory=False), r"no record norm/data/0"),
    "two records of one name": (one_more("data/0"), r"two records norm/data/0"),
    "compressed": (rewritten(nothing, compression=zipfile.ZIP_DEFLATED), r"is compressed"),
    "a bomb": (
        rewritten(
            lambda records: records.update({"norm/data.pkl": b"." * (1 << 24), "norm/more": os.urandom(1000)}),
            compression=zipfile.ZIP_BZIP2,
        ),
        r"is compressed",
    ),
    "a long pickle": (
        rewritten(lambda records: records.update({"norm/data.pkl": b"\x80\x02" + b"N0" * (1 << 20) + b"N."})),
        r"data\.pkl has \d+ bytes",
    ),
    "big-endian": (rewritten(big_endian), r"not little-endian"),
    "no pickle": (rewritten(lambda records: records.pop("norm/data.pkl")), r"cannot be read"),
    "no numbers": (rewritten(lambda records: records.pop("norm/data/0")), r"cannot be read"),
    "no names": (rewritten(one_name), r"cannot be read"),
    "numbers too few": (rewritten(lambda records: records.update({"norm/data/0": b"\0" * 142})), r"elements in 142"),
    "numbers too many": (rewritten(lambda records: records.update({"norm/data/0": b"\0" * 146})), r"elements in 146"),
    "numbers elsewhere": (rewritten(pickle_of(b"X\x01\0\0\0" + b"0", b"X\x01\0\0\0" + b"1")), r"cannot be read"),
    "numbers outside": (rewritten(pickle_of(b"X\x01\0\0\0" + b"0", b"X\x03\0\0\0" + b"../")), r"is not a number"),
    "from the second number on": (rewritten(pickle_of(b"QK\x00", b"QK\x01")), r"from element 1 on"),
    "negated": (saved(torch._neg_view(torch.ones(72, dtype=torch.bfloat16))), r"is conjugated or negated"),
    "every other number": (saved(torch.ones(144, dtype=torch.bfloat16)[::2]), r"with strides \[2\]"),
    "the same number": (saved(torch.ones(1, dtype=torch.bfloat16).expand(72)), r"with strides \[0\]"),
    "not a tensor": (saved({"weights": 1}), r"contains a dict"),
    "sparse": (saved(torch.ones(72).to_sparse()), r"imports torch\._utils\._rebuild_sparse_tensor"),
    "of the older kind": (
        saved(torch.ones(72, dtype=torch.bfloat16), _use_new_zipfile_serialization=False),
        r"cannot be read",
    ),
}  # fmt: skip
