"""Models that cannot be converted are refused with one clear line, before anything is written to the target, and no
code in a file is ever executed."""

import json
import os
import pickle
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex

from baton.tasks.convert.export_model import ExportOptions, export_model
from baton.tasks.convert.import_model import ImportOptions, import_model, open_hugging_face
from baton.tasks.convert.megatron_model import open_megatron
from baton.tasks.models.errors import ConversionError
from tests.convert.test_round_trip import (
    assert_same,
    change_config,
    quietly,
    tensors,
    there_and_back,
    to_hugging_face,
    to_megatron,
)

NORM = "decoder.final_layernorm.weight"


@pytest.fixture
def theirs(models: Path, tmp_path: Path) -> Path:
    """A model in Hugging Face's format."""
    return Path(shutil.copytree(models / "theirs", tmp_path / "theirs"))


@pytest.fixture
def ours(models: Path, tmp_path: Path) -> Path:
    """A model in Megatron's format."""
    return Path(shutil.copytree(models / "ours", tmp_path / "ours"))


def refused(work: Callable[[Path, Path], object], source: Path, words: str) -> None:
    """Check that the error is one line that matches, and that nothing was written to the target."""
    target = source.with_name("target")
    with pytest.raises(ConversionError, match=words) as caught:
        work(source, target)
    assert "\n" not in str(caught.value)
    assert not target.exists()


# Inputs in Megatron's format


def checkpoint_metadata(folder: Path) -> Metadata:
    with (folder / "checkpoint" / ".metadata").open("rb") as stream:
        found = pickle.load(stream)
        assert isinstance(found, Metadata)
        return found


def write_checkpoint_metadata(folder: Path, content: object) -> None:
    (folder / "checkpoint" / ".metadata").write_bytes(pickle.dumps(content))


def cut(path: Path, count: int = 1) -> None:
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size - count)


def cut_off_weights(folder: Path) -> None:
    cut(folder / "checkpoint" / "__0_2.distcp")


def lost_weights(folder: Path) -> None:
    (folder / "checkpoint" / "__0_2.distcp").unlink()


def cut_off_metadata(folder: Path) -> None:
    cut(folder / "checkpoint" / ".metadata", 100)


def empty_metadata(folder: Path) -> None:
    (folder / "checkpoint" / ".metadata").write_bytes(b"")


def no_metadata(folder: Path) -> None:
    (folder / "checkpoint" / ".metadata").unlink()


def other_metadata(folder: Path) -> None:
    write_checkpoint_metadata(folder, {"weights": 1})


def stored_at(file: str) -> Callable[[Path], None]:
    def move(folder: Path) -> None:
        content = checkpoint_metadata(folder)
        content.storage_data[MetadataIndex(NORM, [0])] = _StorageInfo(file, 0, 100)
        write_checkpoint_metadata(folder, content)

    return move


def torn_place(folder: Path) -> None:
    content = checkpoint_metadata(folder)
    content.storage_data[MetadataIndex(NORM, [0])] = "somewhere"
    write_checkpoint_metadata(folder, content)


def lost_place(folder: Path) -> None:
    content = checkpoint_metadata(folder)
    del content.storage_data[MetadataIndex(NORM, [0])]
    write_checkpoint_metadata(folder, content)


def lost_tensor(folder: Path) -> None:
    content = checkpoint_metadata(folder)
    del content.state_dict_metadata[NORM]
    write_checkpoint_metadata(folder, content)


def another_tensor(folder: Path) -> None:
    content = checkpoint_metadata(folder)
    extra = folder / "checkpoint" / "extra.distcp"
    torch.save(torch.ones(72, dtype=torch.bfloat16), extra)
    content.state_dict_metadata["decoder.extra.weight"] = content.state_dict_metadata[NORM]
    place = _StorageInfo(extra.name, 0, extra.stat().st_size)
    content.storage_data[MetadataIndex("decoder.extra.weight", [0])] = place
    write_checkpoint_metadata(folder, content)


def lost_chunk(folder: Path) -> None:
    content = checkpoint_metadata(folder)
    about: Any = content.state_dict_metadata["decoder.layers.mlp.linear_fc2.weight"]
    about.chunks.pop(1)
    write_checkpoint_metadata(folder, content)


def twice_the_same_chunk(folder: Path) -> None:
    """The chunks have the right number of elements, but do not cover all of them."""
    half = folder / "checkpoint" / "half.distcp"
    torch.save(torch.ones(36, dtype=torch.bfloat16), half)
    content = checkpoint_metadata(folder)
    about: Any = content.state_dict_metadata[NORM]
    about.chunks[:] = [ChunkStorageMetadata(torch.Size([0]), torch.Size([36]))] * 2
    content.storage_data[MetadataIndex(NORM, [0])] = _StorageInfo(half.name, 0, half.stat().st_size)
    write_checkpoint_metadata(folder, content)


def torn_archive(mark: bytes, at: int) -> Callable[[Path], None]:
    """Set the four bytes at `at` after the first `mark` to 0xff."""

    def tear(folder: Path) -> None:
        path = folder / "checkpoint" / "__0_2.distcp"
        content = bytearray(path.read_bytes())
        start = content.index(mark) + at
        content[start : start + 4] = b"\xff" * 4
        path.write_bytes(content)

    return tear


def other_type(folder: Path) -> None:
    content = checkpoint_metadata(folder)
    about: Any = content.state_dict_metadata[NORM]
    about.properties.dtype = torch.float32
    write_checkpoint_metadata(folder, content)


def other_shape(folder: Path) -> None:
    change_config(folder / "huggingface", intermediate_size=137)


def no_words(folder: Path) -> None:
    shutil.rmtree(folder / "huggingface")
    (folder / "model.json").unlink()


def torn_words(folder: Path) -> None:
    shutil.rmtree(folder / "huggingface")
    (folder / "model.json").write_text('{"model": ')


OURS: list[tuple[Callable[[Path], None], str]] = [
    (cut_off_weights, r"__0_2\.distcp: has \d+ bytes, but .* should end at \d+"),
    (lost_weights, r"__0_2\.distcp: is missing"),
    (cut_off_metadata, r"\.metadata is (damaged or )?truncated"),
    (empty_metadata, r"\.metadata is damaged or truncated"),
    (no_metadata, r"ours: neither it nor its checkpoint/ is a torch_dist checkpoint"),
    (other_metadata, r"\.metadata contains a dict"),
    (stored_at("../outside.distcp"), r"puts decoder\.final_layernorm\.weight in \.\./outside\.distcp"),
    (stored_at("/etc/passwd"), r"puts decoder\.final_layernorm\.weight in /etc/passwd"),
    (stored_at(".."), r"checkpoint.*\.\."),
    (torn_place, r"\.metadata"),
    (lost_place, r"\.metadata"),
    (lost_tensor, r"decoder\.final_layernorm\.weight \[72\] is missing"),
    (another_tensor, r"decoder\.extra\.weight \[72\] has no place in the model"),
    (lost_chunk, r"the chunks of decoder\.layers\.mlp\.linear_fc2\.weight \[3, 72, 136\] overlap or leave gaps"),
    (twice_the_same_chunk, r"final_layernorm\.weight"),
    (torn_archive(b"PK\x01\x02", 6), r"__0_2\.distcp, bytes 0 to \d+: cannot be read"),  # version of the format
    (torn_archive(b"PK\x06\x06", 40), r"__0_2\.distcp, bytes 0 to \d+: cannot be read"),  # size of the directory
    (torn_archive(b"PK\x03\x04", 0), r"__0_2\.distcp, bytes 0 to \d+: cannot be read"),
    (other_type, r"a tensor \[72\] of torch\.bfloat16, where \.metadata says \[72\] of torch\.float32"),
    (other_shape, r"linear_fc1\.weight is \[3, 272, 72\]; the config says \[3, 274, 72\]"),
    (no_words, r"Give --config"),
    (torn_words, r"model\.json: cannot be read"),
]


@pytest.mark.parametrize(
    ("damage", "words"), OURS, ids=[f"{number}-{damage.__name__}" for number, (damage, _) in enumerate(OURS)]
)
def test_a_damaged_checkpoint(damage: Callable[[Path], None], words: str, ours: Path) -> None:
    damage(ours)
    refused(to_hugging_face, ours, words)


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    refused(to_hugging_face, tmp_path / "nothing", "nothing: neither it nor its checkpoint/")


def test_a_config_that_is_not_there(ours: Path) -> None:
    with pytest.raises(ConversionError, match=r"config\.json: does not exist"):
        open_megatron(ours, ours / "config.json")


@pytest.mark.long
@given(data=st.data())
def test_metadata_that_are_cut_off_anywhere(data: st.DataObject, models: Path) -> None:
    whole = (models / "ours" / "checkpoint" / ".metadata").read_bytes()
    folder = models / "cut"
    if not folder.exists():
        shutil.copytree(models / "ours", folder)
    (folder / "checkpoint" / ".metadata").write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ConversionError, match=r"\.metadata"):
        open_megatron(folder)


# Pickles


class Evil:
    """An object whose pickle calls an arbitrary function."""

    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call, self.arguments


def evil(kind: str, mark: Path) -> Evil:
    """An object whose pickle creates the file `mark` when it is loaded."""
    if kind == "os.system":
        return Evil(os.system, f"touch {mark}")
    if kind == "builtins.exec":
        return Evil(exec, f"open({str(mark)!r}, 'w')")
    if kind == "builtins.getattr":
        return Evil(Path.touch, mark)
    return Evil(torch.load, str(mark.with_name("evil.pt")))


EVIL = ["os.system", "builtins.exec", "builtins.getattr", "torch.load"]


@pytest.mark.parametrize("kind", EVIL)
def test_a_pickle_in_place_of_the_metadata_is_not_run(kind: str, ours: Path, tmp_path: Path) -> None:
    torch.save(evil("os.system", tmp_path / "mark"), tmp_path / "evil.pt")
    write_checkpoint_metadata(ours, evil(kind, tmp_path / "mark"))
    refused(to_hugging_face, ours, r"\.metadata is a pickle that imports [\w.]+; it was not executed")
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("kind", EVIL)
def test_a_pickle_among_the_metadata_is_not_run(kind: str, ours: Path, tmp_path: Path) -> None:
    torch.save(evil("os.system", tmp_path / "mark"), tmp_path / "evil.pt")
    content = checkpoint_metadata(ours)
    content.planner_data = evil(kind, tmp_path / "mark")
    write_checkpoint_metadata(ours, content)
    refused(to_hugging_face, ours, r"\.metadata is a pickle that imports [\w.]+; it was not executed")
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("kind", EVIL)
def test_a_pickle_in_place_of_a_tensor_is_not_run(kind: str, ours: Path, tmp_path: Path) -> None:
    torch.save(evil("os.system", tmp_path / "mark"), tmp_path / "evil.pt")
    path = ours / "checkpoint" / "evil.distcp"
    torch.save(evil(kind, tmp_path / "mark"), path)
    content = checkpoint_metadata(ours)
    content.storage_data[MetadataIndex(NORM, [0])] = _StorageInfo(path.name, 0, path.stat().st_size)
    write_checkpoint_metadata(ours, content)
    refused(to_hugging_face, ours, r"evil\.distcp, .* data\.pkl is a pickle that imports [\w.]+; it was not executed")
    assert not (tmp_path / "mark").exists()


def test_the_evil_pickles_do_run_elsewhere(tmp_path: Path) -> None:
    """Make sure that the tests above do not pass vacuously."""
    torch.save(evil("os.system", tmp_path / "mark"), tmp_path / "evil.pt")
    for kind in EVIL[:-1]:
        pickle.loads(pickle.dumps(evil(kind, tmp_path / "mark")))
        assert (tmp_path / "mark").exists()
        (tmp_path / "mark").unlink()


def test_common_pt_is_not_even_opened(ours: Path, tmp_path: Path) -> None:
    torch.save(evil("os.system", tmp_path / "mark"), ours / "checkpoint" / "common.pt")
    to_hugging_face(ours, tmp_path / "target")
    assert not (tmp_path / "mark").exists()


# Inputs in Hugging Face's format


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, **changes)


def rope(**fields: Any) -> Callable[[Path], None]:
    return config(rope_parameters={"rope_type": "default", "rope_theta": 10000.0} | fields)


def config_text(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "config.json").write_text(text)

    return write


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        found = tensors(folder)
        change(found)
        save_file(found, folder / "model.safetensors", metadata={"format": "pt"})

    return rewrite


def pickled_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def cut_off_file(folder: Path) -> None:
    cut(folder / "model.safetensors")


def cut_off_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:50])


def empty_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def index(change: Callable[[Path, dict[str, Any]], object]) -> Callable[[Path], None]:
    """Split the model into two files, and change the index."""

    def rewrite(folder: Path) -> None:
        found = tensors(folder)
        names = sorted(found)
        halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for file, half in halves.items():
            save_file({name: found[name] for name in half}, folder / file, metadata={"format": "pt"})
        (folder / "model.safetensors").unlink()
        weight_map = {name: file for file, half in halves.items() for name in half}
        content: dict[str, Any] = {"metadata": {}, "weight_map": weight_map}
        change(folder, content)
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))

    return rewrite


def uneven_heads(folder: Path) -> None:
    """Use 6 heads for queries and 4 for keys and values, in the weights too."""
    change_config(folder, num_key_value_heads=4)
    weights(
        lambda found: found.update(
            {name: torch.ones(64, 72, dtype=torch.bfloat16) for name in found if re.search(r"[kv]_proj", name)}
        )
    )(folder)


LM_HEAD = "lm_head.weight"
QUANTIZED = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}

THEIRS: dict[str, tuple[Callable[[Path], object], str]] = {
    "another model": (config(model_type="gpt2"), r"model_type is 'gpt2'; the converter supports llama, "),
    "no model": (config(model_type=None), r"model_type is None"),
    "a model that is no word": (config(model_type=["llama"]), r"model_type is \['llama'\]"),
    "an unknown field": (config(logit_boost=1.5), r"does not know logit_boost = 1\.5"),
    "an unknown rotary field": (rope(beta_medium=3), r"beta_medium = 3"),
    "an unknown rotary type": (rope(rope_type="spiral", factor=2.0), r"rope_type is 'spiral'"),
    "a rotary type without factor": (rope(rope_type="linear"), r"factor"),
    "attention biases": (config(attention_bias=True), r"attention_bias is True"),
    "another activation": (config(hidden_act="gelu"), r"hidden_act is 'gelu'"),
    "quantized": (config(quantization_config=QUANTIZED), r"quantization_config"),
    "code of its own": (config(auto_map={"AutoModelForCausalLM": "modeling.Model"}), r"auto_map"),
    "no heads": (config(num_attention_heads=0), r"num_attention_heads"),
    "heads that do not divide": (uneven_heads, r"num_key_value_heads"),
    "sizes that are no numbers": (config(hidden_size="72"), r"hidden_size"),
    "a size that is a fraction": (config(hidden_size=72.0), r"hidden_size is 72\.0; it should be a valid integer"),
    "a negative size": (config(intermediate_size=-1), r"intermediate_size is -1; it should be greater than"),
    "a list for a size": (config(vocab_size=[101]), r"vocab_size is \[101\]; it should be a valid integer"),
    "a huge size": (config(num_hidden_layers=10**9), r"num_hidden_layers is 1000000000; it should be less than"),
    "a number of 5,000 digits": (
        config_text('{"model_type": "qwen3", "hidden_size": ' + "9" * 5000 + "}"),
        r"config\.json: cannot be read",
    ),
    "a model that is far too large": (
        config(num_hidden_layers=1000, layer_types=["full_attention"] * 1000, intermediate_size=2**24),
        r"describes a model of at least 1207959\d+ parameters \(1000 layers.*; the files have 165480",
    ),
    "NaN": (config(rms_norm_eps=float("nan")), r"config\.json: cannot be read \(NaN is not JSON\)"),
    "a field twice": (config_text('{"model_type": "qwen3", "model_type": "llama"}'), r"'model_type' occurs twice"),
    "a config of 10,000 levels": (config_text("[" * 10_000 + "]" * 10_000), r"config\.json: cannot be read"),
    "several at once": (
        config(hidden_size="72", vocab_size=-1, rms_norm_eps=[]),
        r"vocab_size is -1; .*hidden_size is '72'; .*rms_norm_eps is \[\]; ",
    ),
    "a head of an odd size": (config(head_dim=15), r"head_dim is 15; it must be even"),
    "an unknown kind of layer": (
        config(layer_types=["full_attention", "chunked_attention", "full_attention"]),
        r"layer_types\[1\] is 'chunked_attention'; it should be 'full_attention' or 'sliding_attention'",
    ),
    "too few kinds of layers": (config(layer_types=["full_attention"]), r"layer_types"),
    "a window without its size": (
        config(layer_types=["sliding_attention"] * 3, sliding_window=None),
        r"sliding_window is null, but layer_types has sliding_attention; set it to a number of tokens",
    ),
    "a rotary base of null": (rope(rope_theta=None), r"rope_type default lack rope_theta \(or they are null\)"),
    "a rotary base that is a word": (rope(rope_theta="1e4"), r"rope_parameters\.rope_theta is '1e4'; it should be"),
    "a rotary base of 1": (rope(rope_theta=1.0), r"rope_parameters\.rope_theta is 1\.0; it should be greater than 1"),
    "yarn that never turns": (
        rope(rope_type="yarn", factor=2.0, beta_fast=0, original_max_position_embeddings=32),
        r"rope_parameters\.beta_fast is 0; it should be greater than 0",
    ),
    "llama3 without its frequencies": (rope(rope_type="llama3", factor=2.0), r"low_freq_factor"),
    "llama3 with frequencies the wrong way round": (
        rope(
            rope_type="llama3", factor=2.0, low_freq_factor=4, high_freq_factor=1, original_max_position_embeddings=32
        ),
        r"high_freq_factor is 1; it must be greater than low_freq_factor \(4\)",
    ),
    "a padding token outside the vocabulary": (config(pad_token_id=101), r"transformers cannot run this model"),
    "an end of text that is a word": (config(eos_token_id="</s>"), r"eos_token_id is '</s>'"),
    "a torn tokenizer": (
        lambda folder: (folder / "tokenizer.json").write_text("{"),
        r"tokenizer\.json: cannot be read",
    ),
    "a torn generation config": (
        lambda folder: (folder / "generation_config.json").write_text("{"),
        r"generation_config\.json: cannot be read",
    ),
    "a temperature that is a word": (
        lambda folder: (folder / "generation_config.json").write_text('{"temperature": "hot"}'),
        r"generation_config\.json: temperature is 'hot'; it should be a valid number",
    ),
    "no layers": (config(num_hidden_layers=0), r"num_hidden_layers"),
    "other sizes": (config(vocab_size=103), r"lm_head\.weight is \[101, 72\]; the config says \[103, 72\]"),
    "a torn config": (config_text('{"model_type": "qwen3"'), r"config\.json: cannot be read"),
    "a config that is a list": (config_text("[]"), r"config\.json"),
    "no config": (no_config, r"config\.json: cannot be read"),
    "a missing tensor": (weights(lambda found: found.pop(LM_HEAD)), r"lm_head\.weight \[101, 72\] is missing"),
    "a tensor left over": (
        weights(lambda found: found.update(extra=torch.ones(3))),
        r"extra \[3\] has no place in the model",
    ),
    "a wrong shape": (
        weights(lambda found: found.update({LM_HEAD: found[LM_HEAD][1:].clone()})),
        r"lm_head\.weight is \[100, 72\]; the config says \[101, 72\]",
    ),
    "parts of several types": (
        weights(lambda found: found.update({(k := "model.layers.1.mlp.up_proj.weight"): found[k].float()})),
        r"model\.layers\.1\.mlp\.up_proj\.weight have different types",
    ),
    "pickled weights": (pickled_only, r"has neither model\.safetensors nor .* \(pickled weights are not read\)"),
    "a file cut off": (cut_off_file, r"model\.safetensors: cannot be read \(it is truncated"),
    "a header cut off": (cut_off_header, r"model\.safetensors: cannot be read \(its header would have \d+ bytes"),
    "an empty file": (empty_file, r"model\.safetensors: cannot be read \(it has 0 bytes, fewer than a header"),
    "a missing file": (
        index(lambda folder, content: (folder / "b.safetensors").unlink()),
        r"index\.json: lists b\.safetensors, which the folder does not have",
    ),
    "an index with another tensor": (
        index(lambda folder, content: content["weight_map"].update(other="a.safetensors")),
        r"a\.safetensors: lacks other, listed for it in model\.safetensors\.index\.json",
    ),
    "an index without a tensor": (
        index(lambda folder, content: content["weight_map"].pop(LM_HEAD)),
        r"has lm_head\.weight, which model\.safetensors\.index\.json does not list",
    ),
    "an index that leads outside": (
        index(lambda folder, content: content["weight_map"].update(other="../model.safetensors")),
        r"lists \.\./model\.safetensors, which the folder does not have",
    ),
    "an index that leads to the folder above": (
        index(lambda folder, content: content["weight_map"].update(other="..")),
        r"\.\.",
    ),
    "an index with numbers": (
        index(lambda folder, content: content["weight_map"].update(other=5)),
        r"index\.json",
    ),
    "an index with a list": (
        index(lambda folder, content: content.update(weight_map=["a.safetensors"])),
        r"index\.json",
    ),
    "an index with nothing": (index(lambda folder, content: content.clear()), r"index\.json: has no weight_map"),
}


@pytest.mark.parametrize("name", THEIRS)
def test_a_bad_model(name: str, theirs: Path) -> None:
    damage, words = THEIRS[name]
    damage(theirs)
    refused(to_megatron, theirs, words)
    assert list(theirs.parent.iterdir()) == [theirs]  # nothing was written


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    refused(to_megatron, tmp_path / "nothing", "nothing: does not exist")


# The target


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_target_that_exists_is_left_alone(what: str, theirs: Path, ours: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    if what == "folder":
        target.mkdir()
        (target / "mine").write_text("mine")
    else:
        target.write_text("mine")
    for work, source in ((to_megatron, theirs), (to_hugging_face, ours)):
        with pytest.raises(ConversionError, match="target: exists; choose another target, or pass --replace"):
            work(source, target)
    assert not target.with_name("target.partial").exists()
    if what == "folder":
        assert [path.name for path in target.iterdir()] == ["mine"]


def test_a_target_is_replaced_only_when_the_new_one_is_complete(theirs: Path, ours: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(theirs, tmp_path / "target"))
    (target / "mine").write_text("mine")
    cut_off_weights(ours)
    with pytest.raises(ConversionError):
        to_hugging_face(ours, target, replace=True)
    assert (target / "mine").exists()
    to_megatron(theirs, target, replace=True)
    assert not (target / "mine").exists()
    assert open_megatron(target)


# Full disks

MEGABYTE = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 2 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={2 * MEGABYTE}", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path, leave: int = 0) -> Path:
    """Write a file that takes all free space except `leave` bytes."""
    filler = disk / "filler"
    with filler.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, shutil.disk_usage(disk).free - leave)
    return filler


def move(direction: str, source: Path, target: Path, progress: Callable[[int, int], None] = quietly) -> Path:
    if direction == "import":
        import_model(open_hugging_face(source), target, ImportOptions(), progress)
    else:
        export_model(open_megatron(source), target, ExportOptions(), None, progress)
    return target


def test_a_disk_without_room_is_seen_before_the_work(direction: str, source: Path, disk: Path) -> None:
    fill(disk, 200_000)
    with pytest.raises(ConversionError, match=r"kB are needed and .* kB are free; free some space"):
        move(direction, source, disk / "target")
    assert not (disk / "target").exists()
    assert sum(path.stat().st_size for path in disk.glob("target.partial/**/*")) < 10_000


def test_a_disk_that_fills_up_later_is_reported_and_the_next_one_starts_again(
    direction: str, source: Path, disk: Path, tmp_path: Path
) -> None:
    def fill_it(done: int, total: int) -> None:
        if not (disk / "filler").exists():
            fill(disk)

    with pytest.raises(ConversionError, match=r"target\.partial") as caught:
        move(direction, source, disk / "target", fill_it)
    assert re.search("space|room", str(caught.value))
    assert not (disk / "target").exists()
    (disk / "filler").unlink()
    move(direction, source, disk / "target")
    assert_same_folders(disk / "target", move(direction, source, tmp_path / "undisturbed"))


def test_what_a_stopped_conversion_has_allocated_is_not_asked_for_again(
    direction: str, source: Path, disk: Path, tmp_path: Path
) -> None:
    undisturbed = move(direction, source, tmp_path / "undisturbed")

    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        move(direction, source, disk / "target", stop)
    allocated = sum(path.stat().st_blocks * 512 for path in disk.glob("target.partial/**/*"))
    whole = sum(path.stat().st_size for path in undisturbed.rglob("*"))
    fill(disk, max(0, whole - allocated) + 100_000)
    move(direction, source, disk / "target")


def assert_same_folders(found: Path, expected: Path) -> None:
    files = {str(path.relative_to(expected)): path for path in expected.rglob("*") if path.is_file()}
    assert {str(path.relative_to(found)) for path in found.rglob("*") if path.is_file()} == files.keys()
    for name, path in files.items():
        assert (found / name).read_bytes() == path.read_bytes(), name


def test_models_that_are_converted_are_not_changed(theirs: Path, models: Path, tmp_path: Path) -> None:
    there_and_back(theirs, tmp_path / "out")
    assert_same_folders(theirs, models / "theirs")
    assert_same(tensors(theirs), tensors(models / "theirs"))
