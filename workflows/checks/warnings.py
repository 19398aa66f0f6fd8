"""Warn about settings that a recipe can run with, but that are hardly intended; shown by `plan` and at the start of a
run."""

from collections.abc import Callable, Iterator

from baton.infra.storage.buckets import is_bucket
from baton.tasks.core.spec import StageSpec
from baton.tasks.data.source_spec import OnDisk
from baton.tasks.models.rates import unusual
from baton.workflows.checks.run_context import RunContext, is_planned_for_another_machine, model_of
from baton.workflows.cluster.pod_defaults import low_memory


def warnings_of(context: RunContext) -> list[str]:
    """Every warning, with the path of its field."""
    return [warning for check in CHECKS for warning in check(context)]


def _rates(context: RunContext) -> Iterator[str]:
    """Learning rates far from those that are usual for the model's size."""
    known = model_of(context)
    if known is None:
        return
    model, vocabulary = known
    if (spec := context.specs.get("pretrain")) and spec.optimizer.lr:
        default = spec.default_rate(vocabulary, "init_from" in context)
        if warning := unusual(spec.optimizer.lr, default):
            yield f"pretrain.optimizer.lr: {warning}"
    for step in context.tunings():
        if warning := step.spec.rate_warning(model.parameters(vocabulary)):
            yield f"{step.path}.learning_rate: {warning}"


def _unread(context: RunContext) -> Iterator[str]:
    """Files of sources on this machine that are not read. The stage reports those at addresses."""
    for path, stage in context.stages().items():
        for name, source in stage.by_path().items():
            if isinstance(source, OnDisk) and not is_bucket(source.path) and (line := source.unread()):
                yield f"{path}.{name}".removesuffix(".") + f": {line}"


def _idle(context: RunContext) -> Iterator[str]:
    """GPUs that other stages of the run use, or that a placement has, and a stage does not."""
    stages = {path: spec for path, spec in context.stages().items() if spec.spread_by}
    local = [_gpus(spec) for spec in stages.values() if not spec.placement]
    planned = len(context.machine.gpus) if is_planned_for_another_machine() else 0  # a remark covers this machine
    most = max([planned, *(local if _on_gpus(context) else [])], default=0)
    for path, spec in stages.items():
        used, available = _gpus(spec), most
        if spec.placement:
            counts = [float(name.partition(":")[2] or 1) for name in spec.placement.accelerators]
            available = int(max(counts, default=1) * spec.placement.nodes)
        if used < available and not (spec.exact_devices and spec.placement):  # that is a problem
            yield f"{path}.layout: {used} of {available} GPUs, the others are idle meanwhile: set {spec.spread_by}"


def _on_gpus(context: RunContext) -> bool:
    """Return whether stages without a placement run on GPUs, as far as the recipe says."""
    first = context.specs.get("pretrain")
    return bool(context.machine.gpus or (first and not first.placement and first.layout.device))


def _gpus(spec: StageSpec) -> int:
    return spec.nodes() * spec.devices()


CHECKS: list[Callable[[RunContext], Iterator[str]]] = [_rates, _unread, _idle, low_memory]
