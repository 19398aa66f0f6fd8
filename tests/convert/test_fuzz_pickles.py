"""Random damage to a checkpoint's `.metadata` and `.distcp` files, followed by an export.

The export is either refused with a ConversionError of one line, or has the weights of the undamaged checkpoint. Not
covered are numbers that change inside a tensor's own record, which is read in parts, without its CRC; the digests in
manifest.json detect such changes, if there is a manifest. The damage is therefore limited to the other bytes of the
archives, and to the length of the file.
"""

import os
import pickletools
import random
import shutil
import time
from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from baton.tasks.convert.export_model import ExportOptions, export_model
from baton.tasks.convert.megatron_model import open_megatron
from baton.tasks.convert.saved_tensor import data_start
from baton.tasks.convert.torch_dist import Checkpoint
from baton.tasks.models.errors import ConversionError
from tests.convert.models import make
from tests.convert.test_round_trip import quietly, tensors, to_megatron

EXAMPLES = int(os.environ.get("BATON_FUZZ", "1000"))
LONGEST_S = 120  # maximum time for one export of a tiny model on a busy machine

Numbers = dict[str, list[range]]  # the ranges of bytes that are weights, by file
Change = Callable[[random.Random, bytearray], None]


pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same model as written by Baton and by torch."""
    root = tmp_path_factory.mktemp("checkpoints")
    make("qwen3", root / "theirs", torch.bfloat16)
    ours = to_megatron(root / "theirs", root / "baton")
    (root / "torch").mkdir()
    shutil.copytree(ours / "huggingface", root / "torch" / "huggingface")
    checkpoint = Checkpoint(ours / "checkpoint")
    weights = {name: whole(checkpoint, name) for name in checkpoint.weights()}
    writer = FileSystemWriter(root / "torch" / "checkpoint", thread_count=3)
    save(weights, storage_writer=writer, no_dist=True)
    return [ours, root / "torch"]


def whole(checkpoint: Checkpoint, name: str) -> Tensor:
    shape = checkpoint.tensors[name].shape
    stacked = name.startswith("decoder.layers.")
    parts = [(layer,) for layer in range(shape[0])] if stacked else [()]
    rows = [checkpoint.rows(name, part, 0, shape[len(part)]) for part in parts]
    return torch.stack(rows) if stacked else rows[0]


def numbers(folder: Path) -> Numbers:
    found: Numbers = {}
    for stored in Checkpoint(folder).tensors.values():
        for chunk in stored.chunks:
            with (folder / chunk.file).open("rb") as stream:
                start = data_start(stream.fileno(), chunk.offset, chunk.length, chunk.file)[1]
            found.setdefault(chunk.file, []).append(range(start, start + prod(chunk.shape) * stored.dtype.itemsize))
    return found


# Damage to a pickle


def flip_bits(chance: random.Random, content: bytearray) -> None:
    for _ in range(chance.randint(1, 4)):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def cut(chance: random.Random, content: bytearray) -> None:
    del content[chance.randrange(len(content)) :]


def splice(chance: random.Random, content: bytearray) -> None:
    """Copy some bytes over others."""
    one, other = (chance.randrange(len(content)) for _ in range(2))
    content[one : one + chance.randint(0, 60)] = content[other : other + chance.randint(0, 60)]


def places(content: bytearray) -> list[int]:
    return [place for _, _, place in pickletools.genops(bytes(content)) if place is not None]


def insert_opcodes(chance: random.Random, content: bytearray) -> None:
    at = chance.choice(places(content))
    for _ in range(chance.randint(1, 3)):
        opcode = chance.choice(pickletools.opcodes).code.encode("latin-1")
        content[at:at] = opcode + chance.randbytes(chance.choice([0, 0, 1, 2, 4, 9]))


def move_opcodes(chance: random.Random, content: bytearray) -> None:
    """Duplicate some opcodes, or replace others with them."""
    starts = places(content)
    one, other = (chance.randrange(len(starts) - 9) for _ in range(2))
    length = chance.randint(1, 8)
    moved = content[starts[one] : starts[one + length]]
    content[starts[other] : starts[other + chance.choice([0, length])]] = moved


def change_numbers(chance: random.Random, content: bytearray) -> None:
    """Change a byte of an opcode's argument: sizes, offsets, memo indices."""
    expected = {"BININT", "BININT1", "BININT2", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT"}
    found = [place for opcode, _, place in pickletools.genops(bytes(content)) if opcode.name in expected]
    for place in chance.sample([place for place in found if place is not None], chance.randint(1, 2)):
        content[place + 1] = (content[place + 1] + chance.choice([1, -1, 2, -2, 8, 64, 128])) % 256


PICKLE: list[Change] = [flip_bits, cut, splice, insert_opcodes, move_opcodes, change_numbers]


# Damage to an archive


def damage_archives(chance: random.Random, content: bytearray, weights: list[range]) -> None:
    """Damage bytes outside the weights, or the length of the file."""
    if chance.random() < 0.1:
        cut(chance, content)
        return
    kept = bytearray(len(content))
    for span in weights:
        kept[span.start : span.stop] = b"\1" * len(span)
    free = [at for at, taken in enumerate(kept) if not taken]
    kind = chance.choice(["bits", "bytes", "zeros", "copy"])
    for _ in range(chance.randint(1, 3)):
        at, other = chance.choice(free), chance.choice(free)
        for step in range(1 if kind == "bits" else chance.randint(1, 16)):
            if at + step < len(content) and not kept[at + step]:
                before = content[at + step]
                instead = content[(other + step) % len(content)]
                after = {"bits": before ^ 1 << chance.randrange(8), "bytes": chance.randrange(256), "zeros": 0}
                content[at + step] = after.get(kind, instead)


def damage(chance: random.Random, folder: Path, weights: Numbers) -> str:
    if chance.random() < 0.6:
        path, change = folder / ".metadata", chance.choice(PICKLE)
        content = bytearray(path.read_bytes())
        change(chance, content)
    else:
        path = folder / chance.choice(sorted(weights))
        content = bytearray(path.read_bytes())
        damage_archives(chance, content, weights[path.name])
    path.write_bytes(content)
    return path.name


def fuzz(examples: int, checkpoints: list[Path], tmp_path: Path) -> None:
    expected = tensors(checkpoints[0].with_name("theirs"))
    weights = {source: numbers(source / "checkpoint") for source in checkpoints}
    outcomes = {"refused": 0, "right": 0}
    for seed in range(examples):
        chance = random.Random(seed)
        source = checkpoints[seed % len(checkpoints)]
        folder, target = tmp_path / "damaged", tmp_path / "target"
        shutil.copytree(source, folder)
        where = f"seed {seed}: {damage(chance, folder / 'checkpoint', weights[source])}"
        began = time.monotonic()
        try:
            export_model(open_megatron(folder), target, ExportOptions(), None, quietly)
        except ConversionError as error:
            assert str(error).isprintable(), where
            assert not target.exists(), where
            outcomes["refused"] += 1
        else:
            found = tensors(target)
            assert found.keys() == expected.keys(), where
            assert all(torch.equal(found[name], expected[name]) for name in expected), f"{where}: wrong numbers"
            outcomes["right"] += 1
        assert time.monotonic() - began < LONGEST_S, where
        for path in tmp_path.iterdir():
            shutil.rmtree(path)
    print(f"{examples} damaged checkpoints: {outcomes}")
    assert outcomes["refused"] > examples / 4


def test_a_few_damaged_checkpoints(checkpoints: list[Path], tmp_path: Path) -> None:
    fuzz(40, checkpoints, tmp_path)


@pytest.mark.fuzz
def test_many_damaged_checkpoints(checkpoints: list[Path], tmp_path: Path) -> None:
    fuzz(EXAMPLES, checkpoints, tmp_path)
