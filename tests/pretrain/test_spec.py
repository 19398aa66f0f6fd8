"""The values that a pretraining spec rejects, and those that it computes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.models.model_spec import ExpertsSpec, ModelSpec
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.optimizer_spec import OptimizerSpec
from baton.tasks.pretrain.spec import AnomalySpec, BatchWarmup, CheckpointPolicy, PretrainSpec
from tests.pretrain.shapes import LLAMA_3_8B, MISTRAL_7B, QWEN3_0_6B, QWEN3_30B_A3B


def test_a_default_spec_has_no_problems() -> None:
    assert PretrainSpec().problems() == []


def model(**changes: Any) -> PretrainSpec:
    return PretrainSpec(model=ModelSpec(**changes))


def optimizer(**changes: Any) -> PretrainSpec:
    return PretrainSpec(optimizer=OptimizerSpec(**changes))


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (model(heads=6, kv_heads=4), "model.kv_heads"),
        (model(head_dim=33), "model.head_dim"),
        (model(family="mixtral"), "model.experts"),
        (model(experts=ExpertsSpec()), "model.experts"),
        (model(family="qwen3_moe", experts=ExpertsSpec(count=4, top_k=5)), "model.experts.top_k"),
        (model(sliding_window=64), "model.sliding_window"),
        (model(rope_scaling_factor=8.0), "model.rope_scaling_factor"),
        (optimizer(lr=1e-4, min_lr=1e-3), "optimizer.min_lr"),
        (optimizer(min_lr=1e-4), "optimizer.min_lr"),
        (optimizer(warmup_from=1e-4), "optimizer.warmup_from"),
        (optimizer(lr=3e-3, warmup_from=4e-3), "optimizer.warmup_from"),
        (optimizer(lr=3e-3, warmup_from=1e-4, warmup_steps=0), "optimizer.warmup_from"),
        (optimizer(decay="WSD"), "optimizer.wsd_decay_steps"),
        (optimizer(wsd_decay_steps=5), "optimizer.wsd_decay_steps"),
        (PretrainSpec(global_batch=10, layout=Layout(micro_batch=4)), "layout.micro_batch"),
        (PretrainSpec(sequence_length=1024), "sequence_length"),
        (PretrainSpec(steps=10, optimizer=OptimizerSpec(warmup_steps=10)), "optimizer.warmup_steps"),
        (PretrainSpec(data_weights=[0.0, 0.0]), "data_weights"),
        (
            PretrainSpec(
                global_batch=64, batch_warmup=BatchWarmup(start=16, increment=40), layout=Layout(micro_batch=8)
            ),
            "batch_warmup.increment",
        ),
        (
            PretrainSpec(
                global_batch=64, batch_warmup=BatchWarmup(start=16, increment=16, steps=9999), layout=Layout()
            ),
            "batch_warmup.steps",
        ),
    ],
)
def test_fields_that_contradict_each_other(spec: PretrainSpec, path: str) -> None:
    assert [problem.path for problem in spec.problems()] == [path]


@pytest.mark.parametrize(
    ("shape", "weights", "active"),  # values of the models' cards and safetensors
    [
        (LLAMA_3_8B, 8_030_261_248, 8_030_261_248),
        (MISTRAL_7B, 7_241_732_096, 7_241_732_096),
        (QWEN3_0_6B, 596_049_920, 596_049_920),
        (QWEN3_30B_A3B, 30_532_122_624, 3_353_032_704),
    ],
    ids=["Llama 3 8B", "Mistral 7B", "Qwen3 0.6B", "Qwen3 30B-A3B"],
)
def test_public_models_have_the_weights_that_are_counted(shape: ModelSpec, weights: int, active: int) -> None:
    assert shape.vocab_size
    assert shape.parameters(shape.vocab_size) == weights
    assert shape.active_parameters(shape.vocab_size) == active


def test_qwen2_s_biases_are_weights_too() -> None:
    """The values of Qwen2.5 0.5B."""
    shape = ModelSpec(
        family="qwen2", layers=24, hidden=896, heads=14, kv_heads=2, head_dim=64, ffn_hidden=4864, vocab_size=151936
    )
    assert shape.parameters(151936) == 494_032_768


def test_how_a_result_is_reached_is_no_part_of_it() -> None:
    changed = PretrainSpec(layout=Layout(processes=2, micro_batch=8), checkpoints=CheckpointPolicy(every=7))
    assert changed.identity() == PretrainSpec().identity()
    assert PretrainSpec(seed=1).identity() != PretrainSpec(seed=2).identity()


def test_the_checkpoints_that_a_run_may_go_back_to_are_part_of_its_result() -> None:
    rolls_back = PretrainSpec(anomalies=AnomalySpec(on_spike="roll_back"))
    seldom, more = (
        rolls_back.model_copy(update={"checkpoints": policy})
        for policy in (CheckpointPolicy(every=7), CheckpointPolicy(keep_last=5))
    )
    assert seldom.identity() != rolls_back.identity() == more.identity()

    result, options = seldom.split_options()
    assert result.checkpoints.every == 7 and result.with_options(options) == seldom
    assert more.split_options()[0] == rolls_back


# -- the batch ---------------------------------------------------------------------------------------

warmups = st.builds(
    lambda start, increment, times, steps: (
        BatchWarmup(start=start, increment=increment, steps=steps),
        start + increment * times,
    ),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(0, 12),
    st.integers(1, 60),
)


@given(warmups)
def test_a_batch_grows_from_its_start_to_its_end_by_its_increment(warmup: tuple[BatchWarmup, int]) -> None:
    growing, batch = warmup
    spec = PretrainSpec(global_batch=batch, batch_warmup=growing)
    batches = [spec.batch_at(step) for step in range(growing.steps + 3)]
    assert batches[0] == growing.start
    assert batches == sorted(batches)
    assert batches[growing.steps :] == [batch] * 3
    assert all((size - growing.start) % growing.increment == 0 for size in batches)


@given(warmups, st.integers(0, 100))
def test_samples_are_the_sum_of_the_batches_before(warmup: tuple[BatchWarmup, int], steps: int) -> None:
    growing, batch = warmup
    spec = PretrainSpec(global_batch=batch, batch_warmup=growing, steps=max(1, steps))
    assert spec.samples_at(steps) == sum(spec.batch_at(step) for step in range(steps))
    assert spec.tokens() == spec.samples_at(spec.steps) * spec.sequence_length


def test_experts_take_the_place_of_the_feed_forward_width_where_models_are_compared() -> None:
    """In an export of a mixture whose layers have no ffn_hidden, this field is the width of the experts."""
    trained = ModelSpec(family="mixtral", experts=ExpertsSpec(ffn_hidden=40))
    exported = trained.model_copy(update={"ffn_hidden": 40})
    assert trained.unlike(exported) == {}
    wider = exported.model_copy(update={"experts": ExpertsSpec(ffn_hidden=48), "norm_eps": 1e-5})
    assert trained.unlike(wider) == {"experts.ffn_hidden": (40, 48), "norm_eps": (1e-6, 1e-5)}
    assert ModelSpec(ffn_hidden=72).unlike(ModelSpec()) == {"ffn_hidden": (72, 768)}
