"""Hugging Face → Megatron → Hugging Face: the tensors are equal bit for bit, and the other files are the same."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import AutoModelForCausalLM

from baton.tasks.convert.export_model import ExportOptions, export_model, export_notes
from baton.tasks.convert.import_model import ImportOptions, import_model, import_notes, open_hugging_face
from baton.tasks.convert.megatron_model import open_megatron
from baton.tasks.models.errors import ConversionError
from baton.tasks.models.hf_files import HUGGINGFACE
from tests.convert.models import FAMILIES, LLAMA3, make
from tests.convert.tiny import make_tokenizer


def quietly(done: int, total: int) -> None:
    """A progress callback that does nothing."""


def to_megatron(source: Path, target: Path, **options: Any) -> Path:
    import_model(open_hugging_face(source), target, ImportOptions(**options), quietly)
    return target


def to_hugging_face(source: Path, target: Path, tokenizer: Path | None = None, **options: Any) -> Path:
    export_model(open_megatron(source), target, ExportOptions(**options), tokenizer, quietly)
    return target


def there_and_back(folder: Path, root: Path, **options: Any) -> Path:
    return to_hugging_face(to_megatron(folder, root / "megatron"), root / "back", **options)


def tensors(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a folder, from all files."""
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare tensors bit for bit."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make("qwen3", tmp_path / "model", torch.bfloat16)


def change_config(folder: Path, **changes: Any) -> None:
    """Change fields of the config; None removes a field."""
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}, indent=4))


# Weights


@pytest.mark.parametrize("name", FAMILIES)
def test_every_weight_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    folder = make(name, tmp_path / "model", torch.bfloat16)
    back = there_and_back(folder, tmp_path)
    assert_same(tensors(back), tensors(folder))
    assert (back / "config.json").read_bytes() == (folder / "config.json").read_bytes()


@pytest.mark.parametrize("name", ["llama-tied", "deepseek_v3"])
def test_fp32_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    folder = make(name, tmp_path / "model", torch.float32)
    assert_same(tensors(there_and_back(folder, tmp_path)), tensors(folder))


def test_nan_and_infinity_and_minus_zero_come_back_bit_for_bit(model: Path, tmp_path: Path) -> None:
    weights = tensors(model)
    weights["model.norm.weight"][:4] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])
    weights["model.norm.weight"].view(torch.int16)[4] = 0x7FA5  # a NaN with a payload
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    assert_same(tensors(there_and_back(model, tmp_path)), weights)


def test_several_files_with_an_index_are_the_same_model(tmp_path: Path) -> None:
    folder = make("mixtral", tmp_path / "model", torch.bfloat16)
    back = there_and_back(folder, tmp_path, max_shard_bytes=100_000)
    files = sorted(path.name for path in back.glob("*.safetensors"))
    assert len(files) > 3
    assert all(re.fullmatch(r"model-\d{5}-of-\d{5}\.safetensors", name) for name in files)
    assert_same(tensors(back), tensors(folder))
    one, many = (AutoModelForCausalLM.from_pretrained(each) for each in (folder, back))
    assert_same(many.state_dict(), one.state_dict())


def test_the_index_says_what_is_in_the_files(model: Path, tmp_path: Path) -> None:
    back = there_and_back(model, tmp_path, max_shard_bytes=50_000)
    index = json.loads((back / "model.safetensors.index.json").read_text())
    found = {name: path.name for path in back.glob("*.safetensors") for name in load_file(path)}
    assert index["weight_map"] == found
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors(back).values())


def test_a_file_has_no_more_than_its_limit(model: Path, tmp_path: Path) -> None:
    back = there_and_back(model, tmp_path, max_shard_bytes=50_000)
    for path in back.glob("*.safetensors"):
        assert sum(tensor.nbytes for tensor in load_file(path).values()) <= 50_000


def test_several_files_are_read_as_one_model(model: Path, tmp_path: Path) -> None:
    many = tmp_path / "many"
    AutoModelForCausalLM.from_pretrained(model).save_pretrained(many, max_shard_size="50KB")
    assert len(list(many.glob("*.safetensors"))) > 3
    assert_same(tensors(there_and_back(many, tmp_path)), tensors(model))


# Types


@pytest.mark.parametrize("when", ["on the way in", "on the way out"])
def test_a_cast_is_torch_s_own(when: str, tmp_path: Path) -> None:
    folder = make("qwen3", tmp_path / "model", torch.float32)
    there, back = ("bf16", None) if when == "on the way in" else (None, "bf16")
    found = to_hugging_face(to_megatron(folder, tmp_path / "megatron", dtype=there), tmp_path / "back", dtype=back)
    assert_same(tensors(found), {name: tensor.to(torch.bfloat16) for name, tensor in tensors(folder).items()})
    assert json.loads((found / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_expert_bias_stays_as_exact_as_it_is(tmp_path: Path) -> None:
    folder = make("deepseek_v3", tmp_path / "model", torch.float32)
    expected = {
        name: tensor if name.endswith("e_score_correction_bias") else tensor.to(torch.bfloat16)
        for name, tensor in tensors(folder).items()
    }
    assert_same(tensors(there_and_back(folder, tmp_path, dtype="bf16")), expected)


# Other files


def test_what_is_beside_the_weights_is_carried(model: Path, tmp_path: Path) -> None:
    Tokenizer(WordLevel({"</s>": 0, "a": 1}, unk_token="a")).save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    (model / "generation_config.json").write_text('{"temperature": 0.6,   "eos_token_id": [0, 5]}')
    (model / "chat_template.jinja").write_text("{{ messages }}")
    (model / "pytorch_model.bin").write_bytes(b"pickled weights, which are not wanted")
    back = there_and_back(model, tmp_path)
    carried = {path.name for path in model.iterdir()} - {"model.safetensors", "pytorch_model.bin", "manifest.json"}
    assert carried > {"config.json", "generation_config.json", "chat_template.jinja", "tokenizer.json"}
    assert {path.name for path in back.iterdir()} == carried | {"model.safetensors", "record"}
    for name in carried:
        assert (back / name).read_bytes() == (model / name).read_bytes(), name


def test_a_given_tokenizer_goes_before_the_carried_one(model: Path, tmp_path: Path) -> None:
    (model / "tokenizer_config.json").write_text("{}")
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    back = to_hugging_face(to_megatron(model, tmp_path / "megatron"), tmp_path / "back", tokenizer)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (back / name).read_bytes() == (tokenizer / name).read_bytes()


def test_where_a_turn_ends_comes_with_the_tokenizer_whose_template_it_is(model: Path, tmp_path: Path) -> None:
    """Otherwise a checkpoint from elsewhere would have a chat template, but not the tokens that end a turn."""
    (model / "generation_config.json").unlink()
    tokenizer = Path(shutil.copytree(model, tmp_path / "tokenizer", ignore=shutil.ignore_patterns("*.safetensors")))
    (tokenizer / "generation_config.json").write_text('{"temperature": 0.6, "eos_token_id": [0, 3]}')
    back = to_hugging_face(to_megatron(model, tmp_path / "there"), tmp_path / "back", tokenizer)
    generation = json.loads((back / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [0, 3] and "temperature" not in generation


def test_a_model_without_generation_config_gets_one(model: Path, tmp_path: Path) -> None:
    (model / "generation_config.json").unlink()
    back = there_and_back(model, tmp_path)
    assert json.loads((back / "generation_config.json").read_text())["eos_token_id"] == 0


def test_the_account_has_every_tensor_once(model: Path, tmp_path: Path) -> None:
    back = there_and_back(model, tmp_path)
    account = json.loads((back / "record" / "conversion.json").read_text())["weights"]
    found = {part["name"]: part for entry in account for part in entry["parts"]}
    assert len(found) == sum(len(entry["parts"]) for entry in account)
    assert {name: tuple(part["shape"]) for name, part in found.items()} == {
        name: tuple(tensor.shape) for name, tensor in tensors(model).items()
    }


def test_there_and_back_have_the_same_digests(model: Path, tmp_path: Path) -> None:
    back = there_and_back(model, tmp_path)
    there = json.loads((tmp_path / "megatron" / "record" / "conversion.json").read_text())["weights"]
    assert json.loads((back / "record" / "conversion.json").read_text())["weights"] == there


# config.json of models on the Hub, written by transformers 4, with small sizes

SIZES = {
    "attention_dropout": 0.0,
    "hidden_size": 72,
    "initializer_range": 0.02,
    "max_position_embeddings": 64,
    "num_attention_heads": 6,
    "num_hidden_layers": 3,
    "num_key_value_heads": 3,
    "intermediate_size": 136,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1",
    "use_cache": True,
    "vocab_size": 101,
    "bos_token_id": 1,
}
LAYERS = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False}
QWEN = {"max_window_layers": 3, "sliding_window": 32768, "use_sliding_window": False, "eos_token_id": 100}
GEMMA = {
    "attention_bias": False,
    "cache_implementation": "hybrid",
    "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "pad_token_id": 0,
    "query_pre_attn_scalar": 20,
    "rms_norm_eps": 1e-6,
    "sliding_window": 7,
}
HUB: dict[str, tuple[str, dict[str, Any]]] = {  # a variant of FAMILIES with the same weights, and the fields
    "Llama 3.1": (
        "llama",
        LAYERS
        | {
            "attention_bias": False,
            "eos_token_id": [98, 99, 100],
            "head_dim": 16,
            "mlp_bias": False,
            "pretraining_tp": 1,
            "rope_scaling": {name: value for name, value in LLAMA3.items() if name != "rope_theta"},
        },
    ),
    "Llama, linear": (
        "llama",
        LAYERS | {"head_dim": 16, "rope_scaling": {"type": "linear", "factor": 2.5}, "eos_token_id": 2},
    ),
    "Mistral": ("mistral", LAYERS | {"head_dim": 16, "sliding_window": 7, "eos_token_id": 2}),
    "Mixtral": (
        "mixtral",
        LAYERS
        | {
            "eos_token_id": 2,
            "head_dim": 16,
            "num_experts_per_tok": 2,
            "num_local_experts": 5,
            "output_router_logits": False,
            "router_aux_loss_coef": 0.02,
            "sliding_window": None,
        },
    ),
    "Qwen2.5": (
        "qwen2",
        LAYERS | QWEN | {"head_dim": 16, "rope_scaling": None, "tie_word_embeddings": True, "use_mrope": False},
    ),
    "Qwen3": (
        "qwen3",
        LAYERS | QWEN | {"attention_bias": False, "head_dim": 16, "rope_scaling": None, "sliding_window": None},
    ),
    "Qwen3 30B-A3B": (
        "qwen3_moe",
        LAYERS
        | QWEN
        | {
            "attention_bias": False,
            "decoder_sparse_step": 1,
            "head_dim": 16,
            "mlp_only_layers": [],
            "moe_intermediate_size": 28,
            "norm_topk_prob": True,
            "num_experts": 10,
            "num_experts_per_tok": 3,
            "output_router_logits": False,
            "rope_scaling": None,
            "router_aux_loss_coef": 0.001,
            "sliding_window": None,
        },
    ),
    "Gemma 2": (
        "gemma2",
        GEMMA
        | {
            "attn_logit_softcapping": 50.0,
            "eos_token_id": 1,
            "final_logit_softcapping": 30.0,
            "hidden_act": "gelu_pytorch_tanh",
            "rope_theta": 10000.0,
            "sliding_window_size": 7,
        },
    ),
    "Gemma 3": (
        "gemma3",
        GEMMA
        | {
            "attn_logit_softcapping": None,
            "eos_token_id": [1, 100],
            "final_logit_softcapping": None,
            "num_hidden_layers": 4,
            "rope_local_base_freq": 10000,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "rope_theta": 1000000,
            "sliding_window_pattern": 2,
        },
    ),
    "OLMo 2": (
        "olmo2",
        LAYERS | {"attention_bias": False, "eos_token_id": 100, "pad_token_id": 99, "rope_scaling": None},
    ),
    "DeepSeek-V3 in bf16": (
        "deepseek_v3-yarn",
        LAYERS
        | {
            "attention_bias": False,
            "eos_token_id": 2,
            "ep_size": 1,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 24,
            "moe_intermediate_size": 28,
            "moe_layer_freq": 1,
            "n_group": 4,
            "n_routed_experts": 12,
            "n_shared_experts": 2,
            "norm_topk_prob": True,
            "num_experts_per_tok": 4,
            "num_key_value_heads": 6,
            "num_nextn_predict_layers": 0,
            "q_lora_rank": 40,
            "qk_nope_head_dim": 10,
            "qk_rope_head_dim": 6,
            "rope_scaling": {
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 4,
                "mscale": 1.0,
                "mscale_all_dim": 0.7,
                "original_max_position_embeddings": 32,
                "type": "yarn",
            },
            "routed_scaling_factor": 2.5,
            "scoring_func": "sigmoid",
            "topk_group": 2,
            "topk_method": "noaux_tc",
            "v_head_dim": 14,
        },
    ),
}


@pytest.mark.parametrize("name", HUB)
def test_a_config_as_on_the_hub_works_and_is_carried_as_it_is(name: str, tmp_path: Path) -> None:
    variant, fields = HUB[name]
    folder = make(variant, tmp_path / "model", torch.bfloat16)
    new = json.loads((folder / "config.json").read_text())
    old = SIZES | fields | {name: new[name] for name in ("model_type", "architectures")}
    (folder / "config.json").write_text(json.dumps(old, indent=2))
    back = there_and_back(folder, tmp_path)
    assert (back / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    assert_same(tensors(back), tensors(folder))


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_a_config_that_says_no_type_or_another_one_comes_back_byte_for_byte(dtype: str | None, tmp_path: Path) -> None:
    folder = make("llama", tmp_path / "model", torch.bfloat16)
    change_config(folder, dtype=dtype)
    back = there_and_back(folder, tmp_path)
    assert (back / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    opened = open_megatron(tmp_path / "megatron")
    assert export_notes(opened, ExportOptions(), None) == [
        f"config.json says dtype {dtype!r}, but the weights are bfloat16; it is left as imported"
    ]


def test_an_import_that_casts_says_so_in_the_carried_config(tmp_path: Path) -> None:
    folder = make("llama", tmp_path / "model", torch.float32)
    carried = json.loads(
        (to_megatron(folder, tmp_path / "megatron", dtype="bf16") / HUGGINGFACE / "config.json").read_text()
    )
    assert carried["dtype"] == "bfloat16"
    assert carried == json.loads((folder / "config.json").read_text()) | {"dtype": "bfloat16"}


def test_a_tokenizer_from_a_model_s_folder_does_not_bring_that_model_s_config(tmp_path: Path) -> None:
    folder = make("llama", tmp_path / "model", torch.bfloat16)
    other = make("qwen3", tmp_path / "other", torch.bfloat16)
    back = to_hugging_face(to_megatron(folder, tmp_path / "megatron"), tmp_path / "back", other)
    assert (back / "config.json").read_bytes() == (folder / "config.json").read_bytes()


# model.json describes the same model as a spec of `pretrain`


def test_a_model_for_four_million_positions_gets_a_spec(tmp_path: Path) -> None:
    folder = make("llama", tmp_path / "model")
    change_config(folder, max_position_embeddings=4194304)
    about = json.loads((to_megatron(folder, tmp_path / "megatron") / "model.json").read_text())
    assert about["model"]["max_positions"] == 4194304


UNTRAINABLE: dict[str, tuple[str, dict[str, Any], str]] = {
    "a scaling of 1": ("llama-llama3", {"rope_parameters": LLAMA3 | {"factor": 1.0}}, "rope_scaling_factor is 1.0"),
    "other frequencies": (
        "llama-llama3", {"rope_parameters": LLAMA3 | {"high_freq_factor": 8.0}}, "rope is Rope(theta=10000.0, scaling"
    ),
    "yarn": ("llama-yarn", {}, "rope is Rope(theta=10000.0, scaling='yarn'"),
    "a large epsilon": ("llama", {"rms_norm_eps": 0.05}, "norm_eps is 0.05"),
    "a window in some layers": ("qwen2-window", {}, "windows are [None, 7, 7]"),
    "another family": ("olmo2", {}, "family is olmo2; `pretrain` trains llama, "),
    "experts that are scaled": ("deepseek_v3", {}, "family is deepseek_v3"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNTRAINABLE)
def test_a_model_that_pretrain_cannot_describe_is_carried_without_model_json(name: str, tmp_path: Path) -> None:
    variant, changes, words = UNTRAINABLE[name]
    folder = make(variant, tmp_path / "model", torch.bfloat16)
    change_config(folder, **changes)
    (note,) = import_notes(open_hugging_face(folder), ImportOptions())
    assert note.startswith("model.json is left out") and words in note
    back = there_and_back(folder, tmp_path)
    assert not (tmp_path / "megatron" / "model.json").exists()
    assert_same(tensors(back), tensors(folder))


def test_old_words_for_the_rotary_embedding_mean_the_same(tmp_path: Path) -> None:
    folder = make("llama-llama3", tmp_path / "model")
    expected = open_hugging_face(folder).architecture
    scaling = {name: value for name, value in LLAMA3.items() if name != "rope_theta"}
    change_config(
        folder, rope_parameters=None, rope_theta=LLAMA3["rope_theta"], rope_scaling=scaling, torch_dtype="float32"
    )
    assert open_hugging_face(folder).architecture == expected


def test_an_old_config_of_another_type_keeps_its_old_word_for_it(tmp_path: Path) -> None:
    folder = make("llama", tmp_path / "model", torch.bfloat16)
    change_config(folder, dtype=None, torch_dtype="bfloat16")
    back = json.loads((there_and_back(folder, tmp_path, dtype="fp32") / "config.json").read_text())
    assert back["torch_dtype"] == "float32"
    assert "dtype" not in back


# Tensors in old files that models no longer have


def test_a_tied_output_that_is_saved_again_is_left_out_and_said(tmp_path: Path) -> None:
    folder = make("llama-tied", tmp_path / "model", torch.bfloat16)
    expected = tensors(folder)
    again = expected | {"lm_head.weight": expected["model.embed_tokens.weight"].clone()}
    save_file(again, folder / "model.safetensors", metadata={"format": "pt"})
    assert_same(tensors(there_and_back(folder, tmp_path)), expected)
    assert json.loads((tmp_path / "megatron" / "record" / "conversion.json").read_text())["dropped"] == [
        "lm_head.weight"
    ]


def test_a_tied_output_that_is_another_is_refused(tmp_path: Path) -> None:
    folder = make("llama-tied", tmp_path / "model", torch.bfloat16)
    again = tensors(folder)
    again["lm_head.weight"] = again["model.embed_tokens.weight"] + 1
    save_file(again, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConversionError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        open_hugging_face(folder)


def test_rotary_frequencies_of_old_files_are_left_out(tmp_path: Path) -> None:
    folder = make("llama", tmp_path / "model", torch.bfloat16)
    expected = tensors(folder)
    old = expected | {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(8) for layer in range(3)}
    save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
    assert_same(tensors(there_and_back(folder, tmp_path)), expected)


def test_the_words_of_hugging_face_are_kept_with_the_checkpoint(model: Path, tmp_path: Path) -> None:
    there = to_megatron(model, tmp_path / "megatron") / HUGGINGFACE
    assert (there / "config.json").read_bytes() == (model / "config.json").read_bytes()
    assert not list(there.glob("*.safetensors"))
