"""What a recipe's pretraining will take, known before it starts: tokens, arithmetic, time, memory."""

from collections.abc import Iterator

from tasks.pretrain.accelerators import BY_NAME
from tasks.pretrain.fit import place_of
from tasks.pretrain.flops import flops_per_token
from tasks.pretrain.memory import GB, estimate
from tasks.pretrain.spec import PretrainSpec
from workflows.preflight import Given, vocabulary_of

MFU = 0.4  # what a well set up run reaches on a frontier GPU: Llama 3's had 38-43 %


def plan(given: Given) -> Iterator[str]:
    """A line for each, for the recipe's stages as they are given."""
    spec: PretrainSpec | None = given.specs.get("pretrain")
    if spec is None:
        yield "no pretraining"
        return
    vocabulary = vocabulary_of(given)
    if vocabulary is None:
        yield "pretrain: the vocabulary's size is not known before the run; model.vocab_size can give it"
        return
    weights, active = spec.model.parameters(vocabulary), spec.model.active_parameters(vocabulary)
    each = flops_per_token(spec.model, vocabulary, spec.sequence_length)
    whole, world = each * spec.tokens(), spec.layout.world
    yield f"parameters  {_short(weights)}" + (f", of which a token meets {_short(active)}" if active < weights else "")
    batch = spec.global_batch * spec.sequence_length
    yield (
        f"tokens      {_short(spec.tokens())}, {spec.tokens() / active:.3g} for each parameter"
        f"{' that it meets' if active < weights else ''}; {spec.steps:,} steps of {_short(batch)}"
    )
    yield f"arithmetic  {each / 1e9:.3g} GFLOP a token, {whole:.2e} FLOP in all"
    chip = BY_NAME.get(spec.layout.device or "")
    if chip and (peak := chip.peak(spec.precision)):
        days = whole / (MFU * peak * world) / 86400
        yield f"time        {days:.3g} days on {world} {chip.name}, at {MFU:.0%} of their peak"
    yield f"layout      {spec.layout.name()}: {spec.layout.nodes} x {spec.layout.processes} processes"
    if place := place_of(spec.layout, given.machine):
        needed = estimate(spec, vocabulary, place.kernels)
        yield f"memory      {needed.total / GB:.3g} GB on each {place.name} ({place.capacity / GB:.3g} GB)"
        yield f"            {needed.words()}"


def _short(number: float) -> str:
    """Three digits and a unit: 30.5 B."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"
