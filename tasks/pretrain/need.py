"""Estimate the work of pretraining."""

import math
from collections.abc import Iterator

from baton.tasks.hardware.need import Conditions, Need, Work
from baton.tasks.pretrain.memory import estimate
from baton.tasks.pretrain.spec import PretrainSpec


def need(spec: PretrainSpec, on: Conditions) -> Need | None:
    """Return the work, or None if the layout cannot run."""
    if on.model.problems() or spec.layout_check(on.vocabulary)(spec.layout):
        return None
    memory = estimate(spec, on.vocabulary, on.kernels)
    length, tokens = spec.sequence_length, spec.tokens()
    flops = 3 * on.forward(tokens, length)

    def work() -> Iterator[Work]:
        yield Work("training", flops)
        yield Work("recomputation", on.recomputation(tokens, length, spec.layout.recompute))
        validations = math.ceil(spec.steps / spec.validate_every)
        yield Work("validation", on.forward(validations * spec.validation_sequences * length, length))
        yield on.start()

    return on.need(
        spec, work(), tokens=tokens, flops=flops, memory=memory, processes=spec.layout.world, precision=spec.precision
    )
