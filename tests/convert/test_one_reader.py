"""A model's folder is read in the same way whether a run starts from it, continues its training or converts it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.tasks.convert.base_license import license_notices, license_of
from baton.tasks.convert.import_model import open_hugging_face
from baton.tasks.core.job import StageError
from tests.convert.test_load_hf import change, load_hf, model, rewrite

__all__ = ["model"]  # a fixture

INDEX = "model.safetensors.index.json"


def text(name: str, content: str | bytes) -> Callable[[Path], object]:
    """Return a function that replaces the content of a file."""
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def twice(name: str, field: str) -> Callable[[Path], object]:
    """Return a function that repeats a field of a file."""
    return lambda folder: (folder / name).write_text(
        (folder / name).read_text().rstrip().removesuffix("}") + f', "{field}": 1, "{field}": 2}}'
    )


def in_two_files(
    folder: Path,
    change: Callable[[dict[str, str]], object] = lambda _: None,
    *,
    single: bool = False,
    metadata: bool = True,
) -> None:
    """Split the model into two files, with a change to the index; `single` also keeps the single file."""
    found = load_file(folder / "model.safetensors")
    names = sorted(found)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: found[name] for name in part}, folder / file, {"format": "pt"})
    weight_map = {name: file for file, part in parts.items() for name in part}
    change(weight_map)
    (folder / INDEX).write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map} if metadata else {"weight_map": weight_map})
    )
    if not single:
        (folder / "model.safetensors").unlink()


def without_index(folder: Path) -> None:
    in_two_files(folder)
    (folder / INDEX).unlink()


def without_end(folder: Path) -> None:
    change(folder, eos_token_id=None)
    (folder / "generation_config.json").unlink()
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists():
            fields = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps({key: value for key, value in fields.items() if key != "eos_token"}))


def with_200_tokens(folder: Path) -> None:
    outer = ("model.embed_tokens.weight", "lm_head.weight")
    rewrite(folder, lambda found: found.update({name: found[name][:200].clone() for name in outer}))
    change(folder, vocab_size=200)


NORM = "model.norm.weight"
WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte order mark": (
        lambda folder: text("config.json", b"\xef\xbb\xbf" + (folder / "config.json").read_bytes())(folder),
        "config.json: cannot be read",
    ),
    "a field of config.json twice": (twice("config.json", "hidden_size"), "'hidden_size' occurs twice"),
    "a field of the tokenizer's config twice": (
        twice("tokenizer_config.json", "eos_token"),
        "'eos_token' occurs twice",
    ),
    "a field of the generation config twice": (twice("generation_config.json", "top_k"), "'top_k' occurs twice"),
    "a tokenizer that is none": (text("tokenizer.json", '{"model": 3}'), "tokenizer.json: cannot be read"),
    "one file, and an index of others": (lambda folder: in_two_files(folder, single=True), "lists other files than"),
    "files without an index": (without_index, "has a.safetensors, b.safetensors, and neither model.safetensors nor"),
    "a tensor that is listed elsewhere": (
        lambda folder: in_two_files(folder, lambda places: places.update({NORM: "b.safetensors"})),
        "has model.norm.weight, which model.safetensors.index.json says is in b.safetensors",
    ),
    "an index without metadata": (
        lambda folder: in_two_files(folder, metadata=False),
        "has no metadata, without which",
    ),
    "a tensor that is not listed": (
        lambda folder: in_two_files(folder, lambda places: places.pop(NORM)),
        "has model.norm.weight, which model.safetensors.index.json does not list",
    ),
    "no end of text": (without_end, "says of no token of tokenizer.json that it ends a text"),
    "an embedding for fewer tokens": (with_200_tokens, "its vocab_size 200 is smaller than its tokenizer's"),
    "a temperature that vLLM refuses": (text("generation_config.json", '{"temperature": 3}'), "temperature is 3"),
    "an adapter": (text("adapter_config.json", "{}"), "merge_and_unload"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_alike_at_both_doors(case: str, model: Path, tmp_path: Path) -> None:
    damage, words = WRONG[case]
    damage(model)
    code, result = load_hf(model, tmp_path / "job")
    assert (code, words in result["error"]) == (1, True), result
    with pytest.raises(StageError) as caught:
        open_hugging_face(model)
    assert words in str(caught.value)


def test_buffers_of_old_checkpoints_are_left_out_at_both(model: Path, tmp_path: Path) -> None:
    buffers = ("model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.0.attn.bias", "model.position_ids")
    rewrite(model, lambda found: found.update({name: torch.ones(4) for name in buffers}))
    assert load_hf(model, tmp_path / "job")[0] == 0
    assert {*open_hugging_face(model).dropped} == {*buffers}


@pytest.mark.parametrize(
    ("card", "license", "said"),
    [
        ("\ufeff---\r\nlicense: mit\r\n---\r\n# Model", {"license": "mit"}, ""),
        ("# Model\n\n---\nlicense: mit\n---\n", {}, ""),
        ("---\nlicense: [mit, apache-2.0]\n---\n", {}, "license is ['mit', 'apache-2.0'], not one name"),
        (
            "---\nlicense: mit\nlicense: cc-by-nc-4.0\n---\n",
            {},
            "its front matter cannot be read (license occurs twice)",
        ),
        ("---\nlicense: ''\n---\n", {}, ""),
        ("---\n- mit\n---\n", {}, "it is not a mapping"),
        ("---\nlicense: no\n---\n", {}, "license is False, not one name"),
        ("---\nlicense: mit: x\n---\n", {}, "its front matter cannot be read (mapping values are not allowed"),
        ("---\nlicense: mit\n", {}, "its front matter cannot be read (it has no final line"),
    ],
)
def test_a_license_that_cannot_be_taken_over_is_named(
    card: str, license: dict[str, str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_bytes(card.encode())
    assert license_of(tmp_path) == license
    assert [said in notice for notice in license_notices(tmp_path)] == [True] * bool(said)


def test_what_is_beside_the_model_is_named(model: Path, tmp_path: Path) -> None:
    (model / "original").mkdir()
    (model / "pytorch_model.bin").write_text("pickled")
    (model / "value_head.safetensors").write_text("another's")
    assert load_hf(model, tmp_path / "job")[0] == 0
    notices = (tmp_path / "job/notices.jsonl").read_text()
    assert "left out: original/, pytorch_model.bin, value_head.safetensors" in notices
    assert open_hugging_face(model).left_out == ["original/", "pytorch_model.bin", "value_head.safetensors"]
