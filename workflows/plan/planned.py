"""The stages of a plan: the needs, the place and the time of each, and which are cached."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from baton.tasks.core.spec import StageSpec
from baton.tasks.hardware.accelerators import BY_NAME, Accelerator
from baton.tasks.hardware.memory import GPU, Place, place_of
from baton.tasks.hardware.need import Need
from baton.tasks.pretrain.spec import PretrainSpec
from baton.workflows.checks.run_context import RunContext, devices_of, need
from baton.workflows.dag.calls import calls
from baton.workflows.plan.costs import Quotes, quotes
from baton.workflows.plan.cpu import this_cpu
from baton.workflows.plan.epochs import Epochs, of_night, of_pretraining, of_tuning
from baton.workflows.plan.sources import PlannedSource, planned_sources
from baton.workflows.recipe import Recipe

if TYPE_CHECKING:
    from baton.workflows.continuous_training.calls import Night
    from baton.workflows.plan.dry_run import PlannedStage
    from baton.workflows.plan.earlier_runs import EarlierRun
    from baton.workflows.plan.night import Part


@dataclass(frozen=True)
class Planned:
    """One stage of the plan."""

    name: str
    stage: str
    spec: StageSpec
    after: tuple[str, ...]
    cached: str | None  # the cached artifact's digest
    why: str = ""  # the difference from its nearest earlier result, if it is not cached
    need: Need | None = None  # None if the arithmetic is negligible, or not known before the run
    device: str | None = None  # the device that memory and hours are estimated for
    device_memory: float | None = None  # bytes
    mfu: float | None = None  # assumed
    parts: dict[str, float] = field(default_factory=dict)  # hours by purpose
    hours: float | None = None  # None if not known
    quotes: Quotes | None = None  # None without a placement: it runs here
    sources: tuple[PlannedSource, ...] = ()  # of a pretraining, if the corpus has names for them
    epochs: tuple[Epochs, ...] = ()  # for a pretraining, one for each data set
    earlier: "EarlierRun | None" = None  # by which its hours on this machine's CPU are corrected
    part: str = ""  # of a night: the heading of its part

    @property
    def gpus(self) -> int:
        """Accelerators that the stage uses."""
        return self.spec.nodes() * self.spec.devices() if self.need else 0


def plan(recipe: Recipe, context: RunContext, mfu: float | None, part: "Part | None" = None) -> Iterator[Planned]:
    """Every stage of the recipe, or of a part of its night, in topological order. `mfu` is None for the default of the
    kind of model."""
    # these import all stages and Flyte: not for an invalid recipe
    from baton.workflows.plan.dry_run import steps_of
    from baton.workflows.plan.earlier_runs import earlier_runs, nearest
    from baton.workflows.plan.why import finished_jobs, why

    steps = steps_of(part.dags, part.given) if part else steps_of([calls(recipe.pinned())])
    jobs, runs = finished_jobs(), cache(earlier_runs)  # the latter are read only for a stage on this machine's CPU
    facts: dict[str, dict[str, Any]] = {}
    for step in steps:
        facts[step.name] = step.facts
        shards = [facts[name] for name in facts if name.partition("-")[0] == "shards"]
        rows = next((facts[name] for name in step.after if facts[name].get("rows") is not None), {})
        sources, epochs = _data(recipe, step, shards, rows, part.night if part else None)
        base = need(context, step.spec)
        quoted = quotes(step.spec, base, mfu) if step.spec.placement else None
        place = _place(step.spec, context, quoted) if base else None
        of_data: dict[str, Any] = {"quotes": quoted, "sources": sources, "epochs": epochs}
        of_data |= {"hours": step.spec.expected_hours(), "part": part.heading if part else ""}
        reason = why(step, steps, jobs)
        common = Planned(step.name, step.stage, step.spec, step.after, step.cached, reason, base, **of_data)
        if base is None or place is None:
            yield common
            continue
        needed = need(context, step.spec, place.kernels, place.capacity) or base
        parts = needed.parts(_accelerator(place, needed), mfu)
        is_timed = parts and not needed.gpu and mfu is None
        earlier = nearest(step.stage, 3600 * sum(parts.values()), runs()) if is_timed else None
        if earlier:
            parts = {name: earlier.factor * hours for name, hours in parts.items()}
        yield replace(
            common,
            need=needed,
            device=place.name,
            device_memory=place.capacity,
            mfu=needed.mfu(mfu),
            parts=parts,
            hours=sum(parts.values()) if parts else None,
            earlier=earlier,
        )


def _data(
    recipe: Recipe, step: "PlannedStage", shards: list[dict[str, Any]], rows: dict[str, Any], night: "Night | None"
) -> tuple[tuple[PlannedSource, ...], tuple[Epochs, ...]]:
    """The sources and epochs of a stage; `shards` and `rows`: the facts of its data, as far as they are cached."""
    if name := step.spec.trained_on():
        return (), (of_tuning(step.spec, recipe.data.get(name), rows),)
    spec = step.spec
    if not isinstance(spec, PretrainSpec) or recipe.corpus is None:
        return (), ()
    if night:
        return (), tuple(of_night(spec, night, exact=bool(shards[0])))
    if spec.mixture and not recipe.more_corpora:
        return tuple(planned_sources(recipe.corpus, spec, shards[0].get("sources") if shards else None)), ()
    return (), tuple(of_pretraining(spec, [recipe.corpus, *recipe.more_corpora], shards))


def _place(spec: StageSpec, context: RunContext, quoted: Quotes | None) -> Place | None:
    """The place of one process of the stage: the place tried first, or the spec's device, or this machine."""
    device = next(iter(devices_of(context, spec)), None)
    if quoted and quoted.found:
        device = quoted.found[0].offer.accelerator
    if spec.placement and not device:
        return None  # a machine without an accelerator
    return place_of(device, spec.processes_each(), context.machine)


def _accelerator(place: Place, needed: Need) -> Accelerator | None:
    """The accelerator of a place, or this machine's CPU, measured."""
    return BY_NAME.get(place.name) if place.kernels == GPU else this_cpu(needed.precision, needed.processes)
