"""The properties of models whose files were written by other tools."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from baton.tasks.models.hf_files import HFModelFiles, ModelFilesError, model_in, same_values

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 4,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "eos_token_id": 1,
}
TOKENIZER = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 3, "content": "<end>"}]}


def write(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **files: Any) -> Path:
    """Write a model's folder; `config=…` becomes config.json."""
    given = {"config": CONFIG, "tokenizer": TOKENIZER, "tokenizer_config": {"eos_token": "b"}} | files
    for name, content in given.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    save_file(tensors or {"model.embed_tokens.weight": torch.zeros(4, 8)}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("config", "positions", "heads"),
    [
        ({"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 512}, 512, {16}),
        ({"hidden_size": 64, "num_attention_heads": 4, "head_dim": 32}, None, {32}),
        ({"n_embd": 64, "n_head": 2, "n_positions": 1024}, 1024, {32}),  # GPT-2
        ({"head_dim": 64, "global_head_dim": 256}, None, {64, 256}),
        ({"hidden_size": 64, "num_attention_heads": 4, "kv_lora_rank": 16}, None, set()),  # latent attention
        ({"hidden_size": "64", "num_attention_heads": 0, "max_position_embeddings": True}, None, set()),
        ({}, None, set()),
    ],
)
def test_sizes_by_any_of_their_names(config: dict[str, Any], positions: int | None, heads: set[int]) -> None:
    files = HFModelFiles(config)
    assert (files.positions, files.head_sizes) == (positions, heads)


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer", "ids", "end_of_text"),
    [
        (1, None, None, [1], 1),
        ([1, 2], [2, 3], "<end>", [1, 2, 3], 1),
        (None, [0, 3], "b", [0, 3, 1], 1),  # the tokenizer's token separates documents
        (None, 2, None, [2], 2),
        (None, None, {"content": "<end>", "special": True}, [3], 3),
        (None, None, "<absent>", [], None),
        ("</s>", None, None, [], None),
    ],
)
def test_a_generation_ends_at_the_tokens_of_all_three_files(
    tmp_path: Path, config: Any, generation: Any, tokenizer: Any, ids: list[int], end_of_text: int | None
) -> None:
    found = model_in(
        write(
            tmp_path,
            config=CONFIG | {"eos_token_id": config},
            generation_config={"eos_token_id": generation},
            tokenizer_config={"eos_token": tokenizer},
        )
    )
    assert (found.eos_ids, found.end_of_text) == (ids, end_of_text)


def test_the_end_of_text_may_be_in_a_file_of_its_own(tmp_path: Path) -> None:
    """Older versions of Transformers wrote the token there; newer ones read it if tokenizer_config.json lists no
    tokens."""
    special = {"eos_token": {"content": "<end>"}}
    found = model_in(write(tmp_path, tokenizer_config={}, special_tokens_map=special))
    assert (found.eos_of_tokenizer, found.problems()) == (3, [])
    found = model_in(write(tmp_path, tokenizer_config={"added_tokens_decoder": {}}, special_tokens_map=special))
    assert found.eos_of_tokenizer is None


def test_a_unigram_vocabulary(tmp_path: Path) -> None:
    tokenizer = {"model": {"vocab": [["<unk>", 0.0], ["</s>", -1.5]]}}
    found = model_in(write(tmp_path, tokenizer=tokenizer, tokenizer_config={"eos_token": "</s>"}))
    assert found.eos_of_tokenizer == 1


def test_a_good_model_has_no_problem(tmp_path: Path) -> None:
    found = model_in(write(tmp_path))
    assert found.problems() == []
    assert (found.architecture, found.dtype, found.weight_files) == ("LlamaForCausalLM", "F32", ["model.safetensors"])


HALF = {"a": torch.zeros(8, dtype=torch.bfloat16), "norm": torch.zeros(2)}


def test_the_types_of_a_mixed_model(tmp_path: Path) -> None:
    found = model_in(write(tmp_path, HALF))
    assert (found.dtype, found.widest) == ("BF16", "F32")


@pytest.mark.parametrize(
    ("tensors", "files", "problem"),
    [
        ({"a": torch.zeros(2, dtype=torch.int32)}, {}, "a (I32): choose the original weights"),
        (None, {"config": CONFIG | {"quantization_config": {"quant_method": "awq"}}}, "quantized (config.json: awq)"),
        (None, {"config": CONFIG | {"max_position_embeddings": None}}, "has no max_position_embeddings"),
        (None, {"config": CONFIG | {"max_position_embeddings": 0}}, "has no max_position_embeddings"),
        (
            None,
            {"tokenizer_config": {}},
            "that it ends a text: set eos_token; config.json or generation_config.json has 1",
        ),
        (None, {"config": CONFIG | {"eos_token_id": None}, "tokenizer_config": {}}, "ends a text: set eos_token"),
        (None, {"config": CONFIG | {"eos_token_id": 4}}, "its eos_token_id 4 is not from 0 to 3"),
        (None, {"generation_config": {"eos_token_id": [1, -1]}}, "its eos_token_id -1 is not from 0 to 3"),
        (None, {"generation_config": {"eos_token_id": "0"}}, "eos_token_id is '0'; it should be a valid integer"),
        (None, {"generation_config": {"eos_token_id": [0, None]}}, "eos_token_id[1] is None; it should be a valid int"),
        (None, {"generation_config": {"eos_token_id": []}}, "eos_token_id is []; "),
        (None, {"generation_config": {"eos_token_id": True}}, "eos_token_id is True; "),
        (None, {"generation_config": {"temperature": "hot"}}, "generation_config.json: temperature is 'hot'; "),
        (None, {"generation_config": {"temperature": float("inf")}}, "temperature is inf; it should be a finite"),
        (None, {"generation_config": {"temperature": -1}}, "temperature is -1; "),
        (None, {"generation_config": {"top_p": 7}}, "top_p is 7; it should be less than or equal to 1: correct or"),
        (None, {"generation_config": {"top_k": -5}}, "top_k is -5; "),
        (None, {"generation_config": {"repetition_penalty": 0}}, "repetition_penalty is 0; "),
        (None, {"generation_config": {"max_new_tokens": -4}}, "max_new_tokens is -4; "),
        (None, {"config": CONFIG | {"num_key_value_heads": 4}}, "heads 2 is no multiple of its num_key_value_heads 4"),
        (None, {"config": CONFIG | {"num_key_value_heads": 0}}, "heads 2 is no multiple of its num_key_value_heads 0"),
        (
            None,
            {"config": CONFIG | {"num_local_experts": 2, "num_experts_per_tok": 3}},
            "its num_experts_per_tok 3 is not from 1 to 2",
        ),
        (
            None,
            {"config": CONFIG | {"n_routed_experts": 4, "num_experts_per_tok": 0}},
            "its num_experts_per_tok 0 is not from 1 to 4",
        ),
        (None, {"config": CONFIG | {"vocab_size": 3}}, "its vocab_size 3 is smaller than its tokenizer's 4"),
    ],
)
def test_what_is_wrong_is_reported(
    tmp_path: Path, tensors: dict[str, torch.Tensor] | None, files: dict[str, Any], problem: str
) -> None:
    (found,) = model_in(write(tmp_path, tensors, **files)).problems()
    assert problem in found


def test_a_field_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    (write(tmp_path) / "generation_config.json").write_text('{"eos_token_id": 1, "eos_token_id": 0}')
    with pytest.raises(ModelFilesError, match=r"generation_config\.json: .*'eos_token_id' occurs twice"):
        model_in(tmp_path)


def test_masks_of_old_checkpoints_are_no_weights(tmp_path: Path) -> None:
    found = write(tmp_path, {"h.0.attn.bias": torch.ones(2, 2, dtype=torch.uint8), "a": torch.zeros(2)})
    assert model_in(found).problems() == []


def test_tensors_are_compared_by_their_bytes(tmp_path: Path) -> None:
    zeros = torch.zeros(3, 5)
    found = {
        "a": zeros,
        "b": zeros.clone(),
        "c": zeros.reshape(5, 3).clone(),
        "d": torch.eye(3, 5),
        "e": zeros.to(torch.half),
    }
    tensors = model_in(write(tmp_path, found)).tensors
    assert [same_values(tensors["a"], tensors[name]) for name in "abcde"] == [True, True, False, False, False]


def sharded(folder: Path, weight_map: dict[str, str], single: bool = False) -> Path:
    """Write a model with x and y in a.safetensors and z in b.safetensors; with `single`, also model.safetensors."""
    write(folder)
    if not single:
        (folder / "model.safetensors").unlink()
    save_file({"x": torch.zeros(2), "y": torch.zeros(2)}, folder / "a.safetensors")
    save_file({"z": torch.zeros(2)}, folder / "b.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


WHOLE = {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}


def test_files_that_an_index_lists(tmp_path: Path) -> None:
    found = model_in(sharded(tmp_path, WHOLE))
    assert found.tensors.keys() == WHOLE.keys()
    assert found.weight_files == ["a.safetensors", "b.safetensors", "model.safetensors.index.json"]


@pytest.mark.parametrize(
    ("weight_map", "single", "words"),
    [
        (
            WHOLE | {"y": "b.safetensors"},
            False,
            r"a\.safetensors: has y, which .* says is in b\.safetensors: take",
        ),
        (
            WHOLE | {"w": "b.safetensors"},
            False,
            r"b\.safetensors: lacks w, listed for it in .*: take both",
        ),
        (
            {"x": "a.safetensors", "z": "b.safetensors"},
            False,
            r"a\.safetensors: has y, which .* does not list: take",
        ),
        (WHOLE | {"w": "../c.safetensors"}, False, "lists ../c.safetensors, which the folder does not have"),
        (WHOLE | {"w": 3}, False, "has no weight_map of tensors and files"),
        (WHOLE, True, "lists other files than model.safetensors"),
    ],
)
def test_an_index_of_other_files_is_refused(
    tmp_path: Path, weight_map: dict[str, Any], single: bool, words: str
) -> None:
    """Transformers and vLLM would choose different tensors."""
    with pytest.raises(ModelFilesError, match=words):
        model_in(sharded(tmp_path, weight_map, single))


@pytest.mark.parametrize("names", [["a.safetensors", "b.safetensors"], ["consolidated.safetensors"]])
def test_weights_without_an_index_are_named(tmp_path: Path, names: list[str]) -> None:
    folder = sharded(tmp_path, WHOLE)
    (folder / "model.safetensors.index.json").unlink()
    for old, new in zip(("a.safetensors", "b.safetensors"), names, strict=False):
        (folder / old).rename(folder / new)
    for path in {*folder.glob("*.safetensors")} - {folder / name for name in names}:
        path.unlink()
    with pytest.raises(ModelFilesError, match=f"has {', '.join(names)}, and neither model.safetensors nor .*: add the"):
        model_in(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b'\xef\xbb\xbf{"vocab_size": 8}'),
        ("config.json", '{"vocab_size": 8}'.encode("utf-16")),
        ("config.json", b'{"rope_theta": NaN}'),
        ("tokenizer_config.json", b'{"chat_template": "\\ud800"}'),
        ("tokenizer.json", b'{"model": {"vocab": {"a": 1, "a": 2}}}'),
        ("model.safetensors", b'\x16\0\0\0\0\0\0\0{"x": {}, "x": {}}    '),
        ("config.json", b"{"),
        ("config.json", b"[]"),
        ("tokenizer.json", b'{"model": 3}'),
        ("tokenizer.json", b"\xff"),
        ("model.safetensors", b""),
        ("model.safetensors", b"\x08\0\0\0\0\0\0\0{}"),
        ("model.safetensors", (2**63).to_bytes(8, "little")),
        ("model.safetensors", b'\x0d\0\0\0\0\0\0\0{"a":[1,2,3]}'),
        ("model.safetensors.index.json", b"{}"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    write(tmp_path)
    if "index" in name:
        (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelFilesError, match=name):
        model_in(tmp_path)
