"""The audit detects every deliberate damage."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor

from baton.tasks.convert.audit import Audit, audit
from baton.tasks.convert.command import main
from baton.tasks.convert.export_model import ExportOptions, export_model
from baton.tasks.convert.import_model import ImportOptions, import_model, open_hugging_face
from baton.tasks.convert.megatron_model import open_megatron
from baton.tasks.models.errors import ConversionError
from tests.convert.models import FAMILIES, make, text
from tests.tokenizer_folders import END, PAD, folder

LAYER = "model.layers.0."
ATTENTION, MLP = LAYER + "self_attn.", LAYER + "mlp."
MODEL = "model.safetensors"

Weights = dict[str, Tensor]


def imported(name: str, folder: Path) -> tuple[Path, Path]:
    """Return the folder of a model and its checkpoint."""
    model = make(name, folder / "model", torch.bfloat16)
    import_model(open_hugging_face(model), folder / "checkpoint", ImportOptions(), lambda done, total: None)
    return model, folder / "checkpoint"


def audited(checkpoint: Path, model: Path) -> Audit:
    return audit(open_megatron(checkpoint), open_hugging_face(model), text(), 1e-4, lambda what, done, total: None)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """A function that returns a model and its checkpoint, which are created once and cached."""
    made: dict[str, tuple[Path, Path]] = {}

    def pair(name: str) -> tuple[Path, Path]:
        if name not in made:
            made[name] = imported(name, tmp_path_factory.mktemp("pair"))
        return made[name]

    return pair


@pytest.mark.parametrize("name", FAMILIES)
def test_a_faithful_conversion_passes(pairs: Callable[[str], tuple[Path, Path]], name: str) -> None:
    model, checkpoint = pairs(name)
    found = audited(checkpoint, model)
    assert found.problems() == []
    assert found.argmax_agreement == 1.0
    assert len(found.layer_max_abs_diff) == open_megatron(checkpoint).architecture.layers


def swap(one: str, other: str) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        weights[one], weights[other] = weights[other].clone(), weights[one].clone()

    return change


def transpose(name: str) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        weights[name] = weights[name].T.contiguous()

    return change


def square(name: str) -> Callable[[Weights], None]:
    """Transpose the largest square in a corner, which keeps the shape."""

    def change(weights: Weights) -> None:
        side = min(weights[name].shape)
        weights[name][:side, :side] = weights[name][:side, :side].T.clone()

    return change


def flip(bit: int, name: str = MLP + "up_proj.weight") -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        weights[name].view(torch.int16)[3, 5] ^= 1 << bit

    return change


def edit(name: str, how: Callable[[Tensor], Tensor]) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        weights[name] = how(weights[name]).contiguous()

    return change


def reorder(name: str, rows: tuple[int, int, int], axis: int) -> Callable[[Weights], None]:
    """View the rows of a weight as a three-dimensional array, and exchange two of the dimensions."""
    return edit(name, lambda weight: weight.view(*rows, -1).transpose(axis, axis + 1).reshape(weight.shape))


def drop(name: str) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        del weights[name]

    return change


def add(name: str) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        weights[name] = torch.zeros(3)

    return change


# name: (model, change of its weights)
WEIGHTS: dict[str, tuple[str, Callable[[Weights], None]]] = {
    "k and v swapped": ("qwen3", swap(ATTENTION + "k_proj.weight", ATTENTION + "v_proj.weight")),
    "gate and up swapped": ("qwen3", swap(MLP + "gate_proj.weight", MLP + "up_proj.weight")),
    "q and k norms swapped": ("qwen3", swap(ATTENTION + "q_norm.weight", ATTENTION + "k_norm.weight")),
    "norms swapped": ("qwen3", swap(LAYER + "input_layernorm.weight", LAYER + "post_attention_layernorm.weight")),
    "layers swapped": ("qwen3", swap(MLP + "down_proj.weight", "model.layers.1.mlp.down_proj.weight")),
    "heads in another order": ("qwen3", edit(ATTENTION + "q_proj.weight", lambda w: w.roll(16, 0))),
    "queries not interleaved": ("qwen3", reorder(ATTENTION + "q_proj.weight", (3, 2, 16), 0)),
    "halves of rotary pairs interleaved": ("qwen3", reorder(ATTENTION + "k_proj.weight", (3, 2, 8), 1)),
    "a matrix transposed": ("qwen3", transpose(MLP + "down_proj.weight")),
    "a square transposed": ("qwen3", square(ATTENTION + "o_proj.weight")),
    "the highest bit of an exponent": ("qwen3", flip(14)),
    "a sign": ("qwen3", flip(15)),
    "the lowest bit": ("qwen3", flip(0)),
    "one row of the embedding": ("qwen3", edit("model.embed_tokens.weight", lambda w: torch.cat([w[:-1], w[:1]]))),
    "a row of the embedding too few": ("qwen3", edit("model.embed_tokens.weight", lambda w: w[:-1])),
    "the last norm rescaled": ("qwen3", edit("model.norm.weight", lambda w: w * 1.25)),
    "a weight of NaN": ("qwen3", edit("model.norm.weight", lambda w: w * float("nan"))),
    "another type": ("qwen3", edit(MLP + "up_proj.weight", lambda w: w.float())),
    "a tensor missing": ("qwen3", drop(ATTENTION + "k_norm.weight")),
    "a tensor too many": ("qwen3", add(ATTENTION + "q_proj.bias")),
    "biases swapped": ("qwen2", swap(ATTENTION + "k_proj.bias", ATTENTION + "v_proj.bias")),
    "experts swapped": ("qwen3_moe", swap(MLP + "experts.0.up_proj.weight", MLP + "experts.1.up_proj.weight")),
    "the router's rows in another order": ("qwen3_moe", edit(MLP + "gate.weight", lambda w: w.roll(1, 0))),
    "an expert missing": ("qwen3_moe", drop(MLP + "experts.2.down_proj.weight")),
    "norms after swapped": (
        "gemma2", swap(LAYER + "post_attention_layernorm.weight", LAYER + "post_feedforward_layernorm.weight"),
    ),
    "a norm without its one": ("gemma3", edit(LAYER + "input_layernorm.weight", lambda w: w + 1)),
    "latent keys rolled": ("deepseek_v3", edit(ATTENTION + "kv_b_proj.weight", lambda w: w.roll(1, 0))),
    "the experts' bias": ("deepseek_v3", edit("model.layers.1.mlp.gate.e_score_correction_bias", lambda w: w.flip(0))),
}  # fmt: skip

# name: (model, field of its config, new value)
CONFIGS: dict[str, tuple[str, str, Any]] = {
    "another rope theta": ("qwen3", "rope_parameters", {"rope_type": "default", "rope_theta": 10001.0}),
    "another epsilon": ("qwen3", "rms_norm_eps", 1e-5),
    "tied": ("llama", "tie_word_embeddings", True),
    "not tied": ("llama-tied", "tie_word_embeddings", False),
    "another scaling of rope": (
        "llama-llama3",
        "rope_parameters",
        {
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
        },
    ),
    "another window": ("mistral-window", "sliding_window", 8),
    "no window": ("mistral-window", "sliding_window", None),
    "another number of experts to a token": ("qwen3_moe", "num_experts_per_tok", 1),
    "experts' weights not normalized": ("qwen3_moe", "norm_topk_prob", False),
    "another cap": ("gemma2", "final_logit_softcapping", 20.0),
    "another scale of queries": ("gemma2", "query_pre_attn_scalar", 100),
    "another scale of experts": ("deepseek_v3", "routed_scaling_factor", 1.5),
    "another activation": ("qwen3", "hidden_act", "gelu"),
    "fewer layers": ("qwen3", "num_hidden_layers", 2),
    "other heads": ("qwen3", "num_key_value_heads", 6),
    "another family": ("qwen3", "model_type", "llama"),
    "a field that nobody knows": ("qwen3", "residual_multiplier", 0.5),
}  # fmt: skip


def caught(checkpoint: Path, model: Path) -> str:
    """Return the problem by which the audit distinguishes a damaged pair from an intact one."""
    try:
        problems = audited(checkpoint, model).problems()
    except ConversionError as error:
        return str(error)
    assert problems
    return "; ".join(problems)


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_wrong_weight_is_caught(pairs: Callable[[str], tuple[Path, Path]], tmp_path: Path, name: str) -> None:
    kind, change = WEIGHTS[name]
    model, checkpoint = pairs(kind)
    damaged = Path(shutil.copytree(model, tmp_path / "model"))
    weights = load_file(damaged / MODEL)
    before = {key: weight.clone() for key, weight in weights.items()}
    change(weights)
    changed = [key for key in before.keys() | weights.keys() if not _same(before.get(key), weights.get(key))]
    save_file(weights, damaged / MODEL, metadata={"format": "pt"})
    assert all(key in caught(checkpoint, damaged) for key in changed)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_wrong_config_is_caught(pairs: Callable[[str], tuple[Path, Path]], tmp_path: Path, name: str) -> None:
    kind, field, value = CONFIGS[name]
    model, checkpoint = pairs(kind)
    damaged = Path(shutil.copytree(model, tmp_path / "model"))
    config = json.loads((damaged / "config.json").read_text())
    (damaged / "config.json").write_text(json.dumps(config | {field: value}))
    assert caught(checkpoint, damaged)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-64])


FILES: dict[str, Callable[[Path, Path], None]] = {
    "the weights are cut off": lambda model, checkpoint: cut(model / MODEL),
    "the weights are missing": lambda model, checkpoint: (model / MODEL).unlink(),
    "the config is cut off": lambda model, checkpoint: cut(model / "config.json"),
    "a part of the checkpoint is cut off": lambda model, checkpoint: cut(checkpoint / "checkpoint/__0_2.distcp"),
    "a part of the checkpoint is missing": lambda model, checkpoint: (checkpoint / "checkpoint/__0_1.distcp").unlink(),
    "the checkpoint's metadata are cut off": lambda model, checkpoint: cut(checkpoint / "checkpoint/.metadata"),
}


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content, indent=1))


def in_model_json(field: str, value: Any) -> Callable[[Path, Path], None]:
    def change(model: Path, checkpoint: Path) -> None:
        changed(checkpoint / "model.json", lambda about: about["model"].update({field: value}))

    return change


def in_config(field: str, value: Any) -> Callable[[Path, Path], None]:
    return lambda model, checkpoint: changed(model / "config.json", lambda fields: fields.update({field: value}))


def garbage(place: str) -> Callable[[Path, Path], None]:
    def change(model: Path, checkpoint: Path) -> None:
        (model.parent / place).write_bytes(b"\x80garbage")

    return change


# name: (change of a model and its checkpoint, text in the verdict)
BESIDE: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "model.json: layers": (in_model_json("layers", 2), "model.layers is 2"),
    "model.json: heads": (in_model_json("heads", 3), "model.heads is 3"),
    "model.json: theta": (in_model_json("rope_theta", 10001.0), "model.rope_theta is 10001.0"),
    "model.json: epsilon": (in_model_json("norm_eps", 1e-5), "model.norm_eps is 1e-05"),
    "model.json: tied": (in_model_json("tied_embeddings", True), "model.tied_embeddings is True"),
    "model.json: family": (in_model_json("family", "llama"), "model.family is 'llama'"),
    "model.json: init_std": (in_model_json("init_std", 0.5), "model.init_std is 0.5"),
    "model.json: a vocabulary": (
        lambda model, checkpoint: changed(checkpoint / "model.json", lambda about: about.update(vocab_size=100)),
        "vocab_size is 100",
    ),
    "model.json: a precision": (
        lambda model, checkpoint: changed(checkpoint / "model.json", lambda about: about.update(precision="fp32")),
        "precision is 'fp32'",
    ),
    "model.json is garbage": (garbage("checkpoint/model.json"), "model.json: cannot be read"),
    "model.json is missing": (lambda model, checkpoint: (checkpoint / "model.json").unlink(), "model.json: cannot be"),
    "common.pt is garbage": (garbage("checkpoint/checkpoint/common.pt"), "common.pt: cannot be read"),
    "metadata.json is garbage": (garbage("checkpoint/checkpoint/metadata.json"), "metadata.json: cannot be read"),
    "no_state.distcp is garbage": (garbage("checkpoint/checkpoint/no_state.distcp"), "no_state.distcp: cannot be"),
    "a file too many": (garbage("checkpoint/checkpoint/other.distcp"), "other.distcp: does not belong"),
    "the account is garbage": (garbage("checkpoint/record/conversion.json"), "conversion.json: cannot be read"),
    "the account has another digest": (
        lambda model, checkpoint: changed(
            checkpoint / "record/conversion.json", lambda account: account["weights"][3].update(digest="beef")
        ),
        "does not match",
    ),
    "the carried generation config": (
        garbage("checkpoint/huggingface/generation_config.json"), "generation_config.json: "
    ),
    "the model's generation config": (
        lambda model, checkpoint: (model / "generation_config.json").write_text("{}"), "generation_config.json: "
    ),
    "the model's tokenizer": (
        lambda model, checkpoint: (model / "tokenizer.json").write_text("{}"), "tokenizer.json: is missing in"
    ),
    "eos": (in_config("eos_token_id", 5), "eos_token_id is 5"),
    "bos": (in_config("bos_token_id", 5), "bos_token_id is 5"),
    "architectures": (in_config("architectures", ["Other"]), "architectures is ['Other']"),
    "initializer_range": (in_config("initializer_range", 0.5), "initializer_range is 0.5"),
    "dtype": (in_config("dtype", "float32"), "dtype is 'float32'"),
    "the version of transformers": (in_config("transformers_version", "4.0"), "transformers_version is '4.0'"),
    "only white space": (in_config("vocab_size", 101), "but other bytes"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", BESIDE)
def test_a_change_beside_the_weights_is_caught(
    pairs: Callable[[str], tuple[Path, Path]], tmp_path: Path, name: str
) -> None:
    change, words = BESIDE[name]
    model, checkpoint = (Path(shutil.copytree(path, tmp_path / path.name)) for path in pairs("qwen3"))
    change(model, checkpoint)
    assert words in caught(checkpoint, model)


def test_a_cast_is_no_difference(pairs: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> None:
    """Neither a cast on export nor its change of config.json counts as a difference."""
    _, checkpoint = pairs("qwen3")
    export_model(open_megatron(checkpoint), tmp_path / "fp32", ExportOptions("fp32"), None, lambda done, total: None)
    assert json.loads((tmp_path / "fp32/config.json").read_text())["dtype"] == "float32"
    assert audited(checkpoint, tmp_path / "fp32").problems() == []


def test_the_verdict_names_what_was_not_compared(pairs: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> None:
    """The checkpoint was trained here, and has no tokenizer and no EOS token."""
    model, checkpoint = (Path(shutil.copytree(path, tmp_path / path.name)) for path in pairs("qwen3"))
    shutil.rmtree(checkpoint / "huggingface")
    (model / "tokenizer.json").write_text("{}")
    verdict = audited(checkpoint, model).verdict()
    assert verdict.startswith("the same model")
    for words in ("config.json's eos_token_id", "tokenizer.json (the checkpoint has none)", "common.pt"):
        assert words in verdict.partition("not compared: ")[2]


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_caught(pairs: Callable[[str], tuple[Path, Path]], tmp_path: Path, name: str) -> None:
    model, checkpoint = (Path(shutil.copytree(path, tmp_path / path.name)) for path in pairs("qwen3"))
    FILES[name](model, checkpoint)
    assert str(tmp_path) in caught(checkpoint, model)


def test_one_flipped_bit_in_the_checkpoint_is_caught(pairs: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> None:
    model, checkpoint = pairs("qwen3")
    damaged = Path(shutil.copytree(checkpoint, tmp_path / "checkpoint"))
    path = damaged / "checkpoint" / "__0_1.distcp"
    content = bytearray(path.read_bytes())
    where = content.index(load_file(model / MODEL)[MLP + "down_proj.weight"].view(torch.int16).numpy().tobytes())
    content[where + 100] ^= 1
    path.write_bytes(content)
    assert "model.layers.0.mlp.down_proj.weight: 1 of" in caught(damaged, model)


def test_the_forward_pass_alone_tells_and_says_from_which_layer_on(
    pairs: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    model, checkpoint = pairs("qwen3")
    damaged = Path(shutil.copytree(model, tmp_path / "model"))
    weights = load_file(damaged / MODEL)
    weights["model.layers.1.mlp.down_proj.weight"].mul_(1.1)
    save_file(weights, damaged / MODEL, metadata={"format": "pt"})
    found = audited(checkpoint, damaged)
    before, *after = found.layer_max_abs_diff
    assert before < 1e-5
    assert min(after) > 1e-3
    assert found.logits_max_abs_diff > 1e-3


def test_a_text_without_tokens_is_an_error(pairs: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> None:
    model, checkpoint = pairs("qwen3")
    words = ["audit", str(checkpoint), str(shutil.copytree(model, tmp_path / "model")), "--text"]
    empty = tmp_path / "empty.txt"
    empty.touch()
    ended = CliRunner().invoke(main, [*words, str(empty)])
    assert (ended.exit_code, "has no tokenizer.json" in ended.output) == (1, True)
    small = Tokenizer(WordLevel({END: 0, PAD: 1, "a": 2}, unk_token="a"))
    folder(tmp_path / "model", small)
    ended = CliRunner().invoke(main, [*words, str(empty)])
    assert (ended.exit_code, "has no tokens" in ended.output) == (1, True)
