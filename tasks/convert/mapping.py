"""The mapping between Megatron's and Hugging Face's weights, a table of names with the order of rows for each name.

Every mapping reorders complete rows: a Megatron weight consists of segments of rows of one or more Hugging Face
weights, its *parts*. So one table defines both directions, which are inverse to each other and need no arithmetic.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from baton.tasks.convert.architecture import Architecture
from baton.tasks.models.errors import ConversionError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Segment:
    """Rows [start, stop) of the part with index `part`."""

    part: int
    start: int
    stop: int


@dataclass(frozen=True)
class Rule:
    """A Megatron weight's parts in a family's table. Names may contain {layer} and {expert}."""

    parts: tuple[str, ...]
    shapes: Callable[[Architecture], tuple[Shape, ...]]  # shapes of the parts
    segments: Callable[[Architecture, tuple[Shape, ...]], Iterator[Segment]]
    layers: Literal["all", "dense", "experts"] = "all"
    when: Callable[[Architecture], bool] = lambda model: True


Table = Mapping[str, Rule]  # key: the Megatron weight's name in a dist_checkpoint, with "*" for the layer


def same(name: str, *sizes: str, **rest: object) -> Rule:
    """Return a rule for a weight with another name. `sizes`: its dimensions, as names for Architecture.size."""
    return Rule((name,), lambda model: (tuple(map(model.size, sizes)),), _concatenated, **rest)  # type: ignore[arg-type]


def gate_up(gate: str, up: str, ffn: str = "ffn", **rest: object) -> Rule:
    """Return a rule for Megatron's gated feed-forward, which concatenates the gate and the up projection."""
    return Rule(
        (gate, up),
        lambda model: ((model.size(ffn), model.hidden),) * 2,
        _concatenated,
        **rest,  # type: ignore[arg-type]
    )


def qkv(name: str, bias: bool = False, **rest: object) -> Rule:
    """Return a rule for QKV, which Megatron interleaves by group: heads / kv_heads queries, a key, a value. `name` has
    {} in place of q, k, v."""

    def shapes(model: Architecture) -> tuple[Shape, ...]:
        columns = () if bias else (model.hidden,)
        return tuple((model.size(rows), *columns) for rows in ("queries", "keys", "keys"))

    parts = tuple(name.replace("{}", letter) for letter in "qkv")
    return Rule(parts, shapes, _by_group, **rest)  # type: ignore[arg-type]


def _concatenated(model: Architecture, shapes: tuple[Shape, ...]) -> Iterator[Segment]:
    for part, shape in enumerate(shapes):
        yield Segment(part, 0, shape[0])


def _by_group(model: Architecture, shapes: tuple[Shape, ...]) -> Iterator[Segment]:
    for group in range(model.kv_heads):
        for part, shape in enumerate(shapes):
            rows = shape[0] // model.kv_heads
            yield Segment(part, group * rows, (group + 1) * rows)


@dataclass(frozen=True)
class Weight:
    """One Megatron weight and its parts, with all names and shapes."""

    rule: str  # name in the family's table
    layer: int | None
    expert: int | None
    key: str  # name in the checkpoint
    index: tuple[int, ...]  # index along the checkpoint tensor's leading axes: layer, expert
    leading: tuple[int, ...]  # sizes of the leading axes
    shape: Shape  # shape without the leading axes
    parts: tuple[tuple[str, Shape], ...]  # Hugging Face names and shapes
    segments: tuple[Segment, ...]

    @property
    def name(self) -> str:
        """Return the key and index, for messages and the conversion record."""
        return self.key + "".join(f"[{number}]" for number in self.index)

    @property
    def elements(self) -> int:
        return prod(self.shape)


def check_total_size(model: Architecture, elements: int) -> None:
    """Raise ConversionError for a config whose model is many times larger than the stored weights, before its weights
    are enumerated."""
    experts = model.experts
    dense = min(experts.first, model.layers) if experts else model.layers
    least = model.hidden * (model.vocab + dense * model.ffn)
    if experts:
        least += model.hidden * (model.layers - dense) * experts.count * experts.ffn
    if least > 100 * elements:
        raise ConversionError(
            f"config.json: describes a model of at least {least} parameters ({model.layers} layers, hidden_size "
            f"{model.hidden}, vocab_size {model.vocab}); the files have {elements}"
        )


def weights(table: Table, model: Architecture, stacked: bool = True) -> Iterator[Weight]:
    """Yield every weight of a model in Megatron's order: embedding, layers, output. `stacked`: whether a checkpoint
    whose layers all have the same weights has one tensor for each weight, with the layers along its first axis."""
    stacked = stacked and model.uniform
    ahead = {key: rule for key, rule in table.items() if "*" not in key and key.startswith("embedding")}
    behind = {key: rule for key, rule in table.items() if "*" not in key and key not in ahead}
    for key, rule in ahead.items():
        yield from _expand(key, rule, model, None, stacked)
    for layer in range(model.layers):
        kinds = ("all", "experts") if model.has_experts(layer) else ("all", "dense")
        for key, rule in table.items():
            if "*" in key and rule.layers in kinds:
                yield from _expand(key, rule, model, layer, stacked)
    for key, rule in behind.items():
        yield from _expand(key, rule, model, None, stacked)


def _expand(key: str, rule: Rule, model: Architecture, layer: int | None, stacked: bool) -> Iterator[Weight]:
    """Yield the weight, or one weight for each expert."""
    if not rule.when(model):
        return
    shapes = rule.shapes(model)
    shape = (sum(part[0] for part in shapes), *shapes[0][1:])
    segments = tuple(rule.segments(model, shapes))
    place = key.replace(".*", "") if stacked else key.replace("*", str(layer))
    index: Shape = (layer,) if layer is not None and stacked else ()
    leading: Shape = (model.layers,) if index else ()
    count = model.experts.count if model.experts and "{expert}" in rule.parts[0] else None
    for expert in [None] if count is None else range(count):
        names = [name.replace("{layer}", str(layer)).replace("{expert}", str(expert)) for name in rule.parts]
        yield Weight(
            key,
            layer,
            expert,
            place,
            index if expert is None else (*index, expert),
            leading if count is None else (*leading, count),
            shape,
            tuple(zip(names, shapes, strict=True)),
            segments,
        )
