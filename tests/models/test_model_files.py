"""Loading a model as it is served, and writing it as it was stored."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    MixtralConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from baton.tasks.core.job import StageError
from baton.tasks.models.model_files import as_saved, is_all, load_causal_lm, save_like, saved_buffers, storage_dtype
from baton.tasks.posttrain.weight_check import check_weights
from baton.tasks.vllm.tensor_digests import SORTED, digests, in_order

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
NORM = "model.norm.weight"


def make(folder: Path, config: PretrainedConfig) -> PreTrainedModel:
    """Make a model with sharp random weights, and write it to the folder."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        weight.data.normal_(std=0.3)
    model.save_pretrained(folder)
    return model  # type: ignore[no-any-return]


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.arange(30).unsqueeze(0)).logits
    return found


def test_a_soft_cap_of_the_attention_is_applied(tmp_path: Path) -> None:
    """vLLM applies the soft cap; the default of Transformers ignores it."""
    config = Gemma2Config(**SIZES, num_key_value_heads=1, head_dim=8, attn_logit_softcapping=0.1)
    make(tmp_path, config)
    capped, given = load_causal_lm(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not torch.allclose(logits(capped), logits(given), atol=0.01)
    given.config._attn_implementation = "eager"
    assert torch.allclose(logits(capped), logits(given), atol=1e-5)


def test_without_dropout_a_model_in_training_computes_what_it_is_sampled_from(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=40, n_positions=64, n_embd=16, n_layer=1, n_head=2)
    expected = logits(make(tmp_path, config))
    assert torch.allclose(logits(load_causal_lm(tmp_path, dropout=False).train()), expected, atol=1e-5)
    assert not torch.allclose(logits(load_causal_lm(tmp_path).train()), expected, atol=1e-2)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A bf16 model with an fp32 norm and a generation config that Transformers reads and does not save."""
    folder = tmp_path / "mixed"
    make(folder, MixtralConfig(**SIZES, num_key_value_heads=1, num_local_experts=3)).to(torch.bfloat16)
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors[NORM] = tensors[NORM].float() + 1e-5
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.6}')
    return folder


def test_what_is_not_changed_is_written_as_it_was(mixed: Path, tmp_path: Path) -> None:
    model = load_causal_lm(mixed, dtype=torch.float32)
    save_like(model, mixed, tmp_path / "copy")
    before, after = (load_file(folder / "model.safetensors") for folder in (mixed, tmp_path / "copy"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype and torch.equal(after[name], tensor), name
    for name in ("config.json", "generation_config.json"):
        assert (tmp_path / "copy" / name).read_bytes() == (mixed / name).read_bytes()


def test_the_type_of_most_weights(mixed: Path) -> None:
    assert storage_dtype(mixed) == torch.bfloat16
    assert not is_all(torch.bfloat16, mixed)


def test_weights_without_a_float_type_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(StageError, match="the weights are in I8"):
        storage_dtype(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        MixtralConfig(**SIZES, num_key_value_heads=1, num_local_experts=3),  # expert weights are stacked in memory
        GPTNeoXConfig(**SIZES),  # weights have other names in the file
        GPT2Config(vocab_size=40, n_positions=64, n_embd=16, n_layer=1, n_head=2),
    ],
)
def test_weights_are_sent_under_the_names_of_a_checkpoint(config: PretrainedConfig, tmp_path: Path) -> None:
    model = make(tmp_path, config)
    sent = dict(part for name, weight in model.named_parameters() for part in as_saved(model, name, weight))
    stored = load_file(tmp_path / "model.safetensors")
    assert sent.keys() == stored.keys()
    assert all(torch.equal(sent[name], stored[name]) for name in stored)


def test_buffers_that_are_stored_are_sent_too(tmp_path: Path) -> None:
    model = make(tmp_path, GPTNeoXConfig(**SIZES))
    assert list(saved_buffers(model)) == []
    model.register_buffer("bias", torch.ones(2))
    assert [name for name, _ in saved_buffers(model)] == ["bias"]


def same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.t()


def by_head(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flip(0)


@pytest.mark.parametrize(
    ("arranged", "fused", "equal"),
    [(same, False, True), (transposed, False, True), (by_head, True, True), (by_head, False, False)],
)
def test_the_engine_may_arrange_a_weight_in_another_way(
    arranged: Callable[[torch.Tensor], torch.Tensor], fused: bool, equal: bool
) -> None:
    """The rows may be in another order only in a layer that vLLM fuses."""
    weight = torch.randn(3, 4).bfloat16()
    tensors = {"a": arranged(weight), **({f"a{SORTED}": in_order(weight)} if fused else {})}
    held = digests(tensors.items())
    if equal:
        assert check_weights([("a", weight.float())], held, step=1).tensors == 1
        weight[0, 0] += 1
    with pytest.raises(StageError, match="a differ, 0 tensors are equal"):
        check_weights([("a", weight.float())], held, step=1)
