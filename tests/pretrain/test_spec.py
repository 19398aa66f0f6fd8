"""What a pretraining spec refuses, and what it counts."""

import pytest

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
