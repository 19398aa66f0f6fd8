"""What a pretraining spec refuses, and what it counts."""

import pytest

from tasks.pretrain.flops import PEAK_TFLOPS, flops_per_token, peak_flops
from tasks.pretrain.layout import Layout
from tasks.pretrain.model_spec import ModelSpec
from tasks.pretrain.optimizer_spec import OptimizerSpec
from tasks.pretrain.spec import PretrainSpec


def test_a_default_spec_has_no_problems() -> None:
    assert PretrainSpec().problems() == []


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (PretrainSpec(model=ModelSpec(heads=6, kv_heads=4)), "model.kv_heads"),
        (PretrainSpec(model=ModelSpec(head_dim=33)), "model.head_dim"),
        (PretrainSpec(global_batch=10, layout=Layout(micro_batch=4)), "layout.micro_batch"),
        (PretrainSpec(sequence_length=1024), "sequence_length"),
        (PretrainSpec(steps=10), "optimizer.warmup_steps"),
        (PretrainSpec(optimizer=OptimizerSpec(lr=1e-4, min_lr=1e-3)), "optimizer.min_lr"),
        (PretrainSpec(optimizer=OptimizerSpec(decay="WSD")), "optimizer.wsd_decay_steps"),
        (PretrainSpec(optimizer=OptimizerSpec(wsd_decay_steps=5)), "optimizer.wsd_decay_steps"),
    ],
)
def test_fields_that_contradict_each_other(spec: PretrainSpec, path: str) -> None:
    assert [problem.path for problem in spec.problems()] == [path]


def test_flops_of_one_layer_counted_by_hand() -> None:
    model = ModelSpec(layers=1, hidden=8, heads=2, kv_heads=1, head_dim=4, ffn_hidden=16, max_positions=8)
    q, k, v, o = 8 * 8, 8 * 4, 8 * 4, 8 * 8
    swiglu = 3 * 8 * 16
    keys_seen = sum(range(1, 9)) / 8  # by the eight positions of a causal sequence
    attention = 2 * 2 * 4 * keys_seen  # scores and their sum of values, two heads of four
    logits = 8 * 10
    assert flops_per_token(model, 10, 8) == 6 * (q + k + v + o + swiglu + attention + logits)


def test_the_peak_of_this_cpu_is_measured() -> None:
    peak = peak_flops("fp32")
    assert peak is not None
    assert 1e9 < peak < 1e14


@pytest.mark.parametrize(
    ("part", "bf16"),  # dense TFLOP/s in the makers' data sheets
    [("H200", 989.4), ("H100", 989.4), ("H100 PCIe", 756.0), ("A100", 312.0), ("L4", 121.0), ("B200", 2250.0)],
)
def test_the_table_of_peaks_has_the_dense_figures(part: str, bf16: float) -> None:
    assert PEAK_TFLOPS[part]["bf16"] == bf16


def test_a_longer_name_comes_before_the_shorter_one_that_it_contains() -> None:
    names = list(PEAK_TFLOPS)
    for index, name in enumerate(names):
        assert not any(earlier in name for earlier in names[:index])
