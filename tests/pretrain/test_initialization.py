"""The weights that a run starts from."""

import math

import pytest

from tests.pretrain.alone import alone
from tests.pretrain.parity_layouts import SUBJECTS, VOCABULARY


@pytest.mark.parametrize("subject", SUBJECTS)
def test_norms_start_at_one_biases_at_zero_and_the_rest_with_its_deviation(subject: str) -> None:
    from baton.tasks.pretrain.model import build_model, transformer_config

    spec = SUBJECTS[subject].model
    with alone():
        weights = dict(build_model(spec, transformer_config(spec, "fp32"), VOCABULARY).named_parameters())
    for name, weight in weights.items():
        if "norm" in name:
            assert (weight == 1).all(), name
        elif name.endswith("bias"):
            assert (weight == 0).all(), name
        else:
            into_residual = "linear_proj" in name or "linear_fc2" in name
            std = spec.init_std / math.sqrt(2 * spec.layers) if into_residual else spec.init_std
            assert weight.std().item() == pytest.approx(std, rel=0.15), name
