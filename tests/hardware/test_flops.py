"""FLOPs per token, compared with counts written out by hand and with torch's count for the real model."""

import platform
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from baton.tasks.hardware import flops
from baton.tasks.hardware.flops import cached_peak, flops_per_token, keys_per_query, peak_flops
from baton.tasks.models.model_spec import ExpertsSpec, ModelSpec
from baton.tasks.pretrain.model import build_model, transformer_config
from tests.pretrain.alone import alone
from tests.pretrain.shapes import LLAMA_3_8B, MISTRAL_7B, QWEN3_0_6B, QWEN3_30B_A3B

SHAPE: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn_hidden": 96}
MODELS = {
    "dense": ModelSpec(**SHAPE),
    "biased, untied": ModelSpec(**SHAPE, family="qwen2", tied_embeddings=False),
    "experts": ModelSpec(
        **SHAPE, family="qwen3_moe", experts=ExpertsSpec(count=8, top_k=2, ffn_hidden=32, shared_ffn_hidden=48)
    ),
}

# Multiply-adds of one token in the forward pass. Each is two FLOPs, and the backward pass costs twice as much as the
# forward pass.


def test_llama_3_8b_by_hand() -> None:
    layer = (
        16_777_216  # queries: 4096 x 4096
        + 2 * 4_194_304  # keys, values: 4096 x 1024 each
        + 16_777_216  # output of attention: 4096 x 4096
        + 33_558_528  # scores and weighted sum of values: 2 x 4096 x 4096.5 keys, the mean over 8192 positions
        + 176_160_768  # gate, up and down: 3 x 4096 x 14336
    )
    output = 525_336_576  # 4096 x 128256
    assert 6 * (32 * layer + output) == 51_471_187_968
    assert flops_per_token(LLAMA_3_8B, 128_256, 8192) == 51_471_187_968


def test_qwen3_0_6b_by_hand() -> None:
    layer = (
        2_097_152  # queries: 1024 x 2048
        + 2 * 1_048_576  # keys, values: 1024 x 1024 each
        + 2_097_152  # output of attention: 2048 x 1024
        + 8_390_656  # scores and weighted sum of values: 2 x 2048 x 2048.5 keys
        + 9_437_184  # gate, up and down: 3 x 1024 x 3072
    )
    output = 155_582_464  # 1024 x 151936: the weights of the embedding again, since they are tied
    assert 6 * (28 * layer + output) == 4_985_536_512
    assert flops_per_token(QWEN3_0_6B, 151_936, 4096) == 4_985_536_512


def test_qwen3_30b_a3b_by_hand() -> None:
    layer = (
        8_388_608  # queries: 2048 x 4096
        + 2 * 1_048_576  # keys, values: 2048 x 512 each
        + 8_388_608  # output of attention: 4096 x 2048
        + 16_781_312  # scores and weighted sum of values: 2 x 4096 x 2048.5 keys
        + 262_144  # router: 2048 x 128
        + 37_748_736  # gate, up and down of 8 experts: 8 x 3 x 2048 x 768
    )
    output = 311_164_928  # 2048 x 151936
    assert 6 * (48 * layer + output) == 23_082_958_848
    assert flops_per_token(QWEN3_30B_A3B, 151_936, 4096) == 23_082_958_848


def test_a_shared_expert_counts_for_every_token() -> None:
    plain = ExpertsSpec(count=4, top_k=2, ffn_hidden=16)
    without = ModelSpec(family="mixtral", layers=3, hidden=32, experts=plain)
    shared = without.model_copy(update={"experts": plain.model_copy(update={"shared_ffn_hidden": 24})})
    assert flops_per_token(shared, 100, 64) - flops_per_token(without, 100, 64) == 6 * 3 * (3 * 32 * 24)


@pytest.mark.parametrize("sequence", [1, 3, 4, 5, 17])
def test_keys_are_those_that_causality_and_the_window_leave(sequence: int) -> None:
    seen = [min(place + 1, 4) for place in range(sequence)]  # a window of four tokens
    assert keys_per_query(sequence, 4) == pytest.approx(sum(seen) / sequence)
    assert keys_per_query(sequence, None) == (sequence + 1) / 2


def test_a_window_saves_attention_only_beyond_its_length() -> None:
    whole = MISTRAL_7B.model_copy(update={"sliding_window": None})
    assert flops_per_token(MISTRAL_7B, 32_000, 4096) == flops_per_token(whole, 32_000, 4096)
    assert flops_per_token(MISTRAL_7B, 32_000, 32_768) < 0.8 * flops_per_token(whole, 32_000, 32_768)


@pytest.mark.parametrize("name", MODELS)
def test_the_count_is_what_torch_counts_in_the_real_model(name: str) -> None:
    """The forward and backward passes of Megatron's model. Torch counts attention as if each token saw the entire
    sequence, and includes the scores that a CPU recomputes in the backward pass."""
    model, sequences, length = MODELS[name], 2, 64
    tokens = torch.randint(0, 100, (sequences, length))
    places = torch.arange(length).expand(sequences, length)
    with alone(), FlopCounterMode(display=False) as counter:
        built = build_model(model, transformer_config(model, "fp32"), vocab_size=100)
        built(tokens, places, None, labels=tokens).sum().backward()
    hidden_by_causality = length - keys_per_query(length, None)
    more = 6 * model.layers * 2 * model.heads * model.head_dim * hidden_by_causality
    more += 2 * model.layers * model.heads * model.head_dim * length
    counted = counter.get_total_flops() / (sequences * length)
    assert counted == flops_per_token(model, 100, length) + more


def test_a_run_never_reaches_more_than_its_peak(tmp_path: Path) -> None:
    """The peak may have been measured while the machine was busy."""
    file = tmp_path / "peak.json"
    peak = cached_peak(file, "fp32")
    assert peak and peak > 1e9
    assert cached_peak(file, "fp32", reached=2e6) == peak
    assert cached_peak(file, "fp32", reached=1e15) == 1e15


def test_a_resumed_run_has_the_peak_that_was_measured_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = iter([3e9, 5e9, 6e9])
    monkeypatch.setattr(flops, "cpu_peak", lambda precision: next(measured))
    assert [cached_peak(tmp_path / "peak.json", "fp32") for _ in range(2)] == [3e9, 3e9]
    assert cached_peak(tmp_path / "peak.json", "fp32", reached=4e9) == 5e9  # measured again
    monkeypatch.setattr(platform, "node", lambda: "another machine")
    assert cached_peak(tmp_path / "peak.json", "fp32") == 6e9


def test_the_peak_of_this_cpu_is_measured() -> None:
    peak = peak_flops("fp32")
    assert peak is not None
    assert 1e9 < peak < 1e14
