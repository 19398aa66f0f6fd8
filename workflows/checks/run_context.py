"""Facts about a recipe's stages that are known before the run."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from baton.infra.placement.config import Placement
from baton.infra.pod import this_pod
from baton.tasks.core.spec import StageSpec
from baton.tasks.hardware.accelerators import BY_NAME
from baton.tasks.hardware.machine import Machine, this_machine
from baton.tasks.hardware.memory import GPU, Kernels
from baton.tasks.hardware.need import Conditions, Need, need_of
from baton.tasks.models.model_spec import FAMILIES, ExpertsSpec, ModelSpec
from baton.tasks.posttrain.spec import LENGTH
from baton.workflows.dag.post_training import ResolvedStage, steps

# the fields of config.json that give a dense model's shape
SIZES = {"model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}


_for_a_cluster = ContextVar("_for_a_cluster", default=False)
_planned = ContextVar[Machine | None]("_planned", default=None)
UNKNOWN = Machine((), 2**60)  # on a cluster: a pod's resources are in its stage's `pod`


@contextmanager
def for_a_cluster() -> Iterator[None]:
    """Read recipes in the body for a run in a cluster's pods, not here."""
    before = _for_a_cluster.set(True)
    try:
        yield
    finally:
        _for_a_cluster.reset(before)


def is_for_a_cluster() -> bool:
    """Return whether this process is a cluster's client."""
    return _for_a_cluster.get()


@contextmanager
def planned_for(gpu: str, count: int) -> Iterator[None]:
    """Plan recipes that are read in the body for a machine with this many of these accelerators (a key of BY_NAME),
    whatever their layouts name. Placed stages are unaffected."""
    before = _planned.set(Machine((BY_NAME[gpu].reported,) * count, UNKNOWN.memory_bytes))
    try:
        yield
    finally:
        _planned.reset(before)


def is_planned_for_another_machine() -> bool:
    return _planned.get() is not None


def _machine() -> Machine:
    return _planned.get() or (UNKNOWN if runs_on_a_cluster() else this_machine())


def runs_on_a_cluster() -> bool:
    return is_for_a_cluster() or this_pod() is not None


@dataclass(frozen=True)
class RunContext:
    """The stages that a recipe turns on, and the machine that they run on."""

    specs: dict[str, Any]
    machine: Machine = field(default_factory=_machine)

    def __contains__(self, section: str) -> bool:
        return bool(self.specs.get(section))

    def stages(self) -> dict[str, StageSpec]:
        """Every stage's spec by its path in the recipe: "pretrain", "data.chat", and so on."""
        specs = {section: spec for section, spec in self.specs.items() if isinstance(spec, StageSpec)}
        specs |= {f"more_corpora.{number}": spec for number, spec in enumerate(self.specs.get("more_corpora", ()))}
        specs |= {f"data.{name}": spec for name, spec in self.specs.get("data", {}).items()}
        specs |= {step.path: step.spec for step in self.tunings()}
        return specs | {f"stages.{number}": spec for number, spec in enumerate(self.specs.get("stages", ()))}

    def tunings(self) -> list[ResolvedStage]:
        """The stages of `post_training`."""
        return list(steps(self.specs.get("post_training", [])))


def vocabulary_of(context: RunContext) -> int | None:
    """Rows of the pretrained embedding, if known before the run."""
    rows: int | None = context.specs["pretrain"].model.vocab_size
    return rows or (context.specs["tokenizer"].size() if "tokenizer" in context.specs else None)


def model_of(context: RunContext) -> tuple[ModelSpec, int] | None:
    """The shape and vocabulary size of the model that is pretrained or that the run starts from; None if they are not
    known before the run, or the family has no FLOP and memory model."""
    if "pretrain" in context.specs:
        vocabulary = vocabulary_of(context)
        return (context.specs["pretrain"].model, vocabulary) if vocabulary else None
    config = context.specs["start_from"].config() if "start_from" in context.specs else None
    if not config or not config.keys() >= SIZES:
        return None
    try:
        return (_shape(config), int(config["vocab_size"])) if config["model_type"] in FAMILIES else None
    except (TypeError, ValueError, KeyError, ZeroDivisionError):  # pydantic's errors are ValueErrors
        return None


def _shape(config: dict[str, Any]) -> ModelSpec:
    """The shape that a config.json gives. Raises TypeError, ValueError, KeyError, ZeroDivisionError."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    experts = None
    if FAMILIES[config["model_type"]].experts:
        experts = ExpertsSpec(
            count=config["num_experts" if "num_experts" in config else "num_local_experts"],
            top_k=config["num_experts_per_tok"],
            ffn_hidden=config.get("moe_intermediate_size") or config["intermediate_size"],
        )
    return ModelSpec(
        family=config["model_type"],
        layers=config["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        ffn_hidden=config["intermediate_size"],
        experts=experts,
        tied_embeddings=config.get("tie_word_embeddings", True),
    )


def positions_of(context: RunContext) -> tuple[int, str] | None:
    """The model's maximum positions, and the field that sets them; None if they are not known before the run."""
    if "pretrain" in context.specs:
        return context.specs["pretrain"].model.max_positions, "pretrain.model.max_positions"
    positions = context.specs["start_from"].max_positions() if "start_from" in context.specs else None
    return (positions, "start_from.model's max_position_embeddings") if positions else None


def placements_of(context: RunContext) -> dict[str, Placement]:
    """The placements, by their stage's path in the recipe."""
    return {path: spec.placement for path, spec in context.stages().items() if spec.placement}


def devices_of(context: RunContext, spec: StageSpec) -> list[str | None]:
    """The accelerators that a stage may run on: without a placement, those of pretraining; None for this machine's."""
    if spec.placement:
        named = [name.partition(":")[0] for name in spec.placement.accelerators]
        return [*(named or filter(None, [spec.device()]))]
    first: StageSpec | None = context.specs.get("pretrain")
    return [first.device() if first and not first.placement and not is_planned_for_another_machine() else None]


def need(context: RunContext, spec: StageSpec, kernels: Kernels = GPU, capacity: float | None = None) -> Need | None:
    """Estimate a stage. Returns None if its arithmetic is negligible, the model is not known before the run, or the
    layout cannot run, which the spec reports. `capacity`: the GPU's memory in bytes, of which vLLM uses its share."""
    if (known := model_of(context)) is None:
        return None
    positions, _ = positions_of(context) or (LENGTH, "")
    corpora = 1 + len(context.specs.get("more_corpora", ())) if "corpus" in context else 0
    return need_of(spec, Conditions(*known, positions, corpora, kernels, capacity))
