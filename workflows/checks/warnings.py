"""What a recipe can run with, but hardly means: shown by `plan` and at the start of a run."""

from collections.abc import Callable, Iterator

from infra.storage.buckets import is_bucket
from tasks.data.source_spec import OnDisk
from tasks.data.spec import CorpusSpec
from tasks.posttrain.spec import PostTrainSpec
from tasks.pretrain.spec import PretrainSpec
from tasks.rates import too_high
from tasks.rows.spec import RowsSpec
from tasks.spec import StageSpec
from workflows.run_context import RunContext, is_planned_for_another_machine, model_of


def warnings_of(context: RunContext) -> list[str]:
    """Every warning, with the path of its field."""
    return [warning for check in CHECKS for warning in check(context)]


def _rates(context: RunContext) -> Iterator[str]:
    """Learning rates far above those that are usual for the model's size."""
    known = model_of(context)
    if known is None:
        return
    model, vocabulary = known
    if (spec := context.specs.get("pretrain")) and spec.optimizer.lr:
        default = spec.default_rate(vocabulary, "init_from" in context)
        if warning := too_high(spec.optimizer.lr, default):
            yield f"pretrain.optimizer.lr: {warning}"
    for path, stage in context.stages().items():
        if isinstance(stage, PostTrainSpec) and (warning := stage.rate_warning(model.parameters(vocabulary))):
            yield f"{path}.learning_rate: {warning}"


def _unread(context: RunContext) -> Iterator[str]:
    """Files of sources on this machine that are not read. Of those at addresses the stage tells."""
    for path, stage in context.stages().items():
        if isinstance(stage, CorpusSpec):
            sources = {f"{path}.{name}": source for name, source in stage.by_path().items()}
        else:
            sources = {path: stage.files()} if isinstance(stage, RowsSpec) and stage.path else {}
        for name, source in sources.items():
            if isinstance(source, OnDisk) and not is_bucket(source.path) and (line := source.unread()):
                yield f"{name}: {line}"


def _idle(context: RunContext) -> Iterator[str]:
    """GPUs that other stages of the run use, or that a placement has, and a stage does not."""
    stages = {path: spec for path, spec in context.stages().items() if isinstance(spec, TRAINED)}
    local = [_gpus(spec) for spec in stages.values() if not spec.placement]
    planned = len(context.machine.gpus) if is_planned_for_another_machine() else 0  # of this one, a remark tells
    most = max([planned, *(local if _on_gpus(context) else [])], default=0)
    for path, spec in stages.items():
        used, available = _gpus(spec), most
        if spec.placement:
            counts = [float(name.partition(":")[2] or 1) for name in spec.placement.accelerators]
            available = int(max(counts, default=1) * spec.placement.nodes)
        if used < available and not (isinstance(spec, PretrainSpec) and spec.placement):  # which is a problem
            way = "processes" if isinstance(spec, PretrainSpec) else "processes and sharding: ddp or fsdp2"
            yield f"{path}.layout: {used} of {available} GPUs, the others are idle meanwhile: set {way}"


def _on_gpus(context: RunContext) -> bool:
    """Whether what is not placed runs on GPUs, as far as the recipe says."""
    first = context.specs.get("pretrain")
    return bool(context.machine.gpus or (first and not first.placement and first.layout.device))


def _gpus(spec: StageSpec) -> int:
    return spec.nodes() * spec.devices()


TRAINED = (PretrainSpec, PostTrainSpec)
CHECKS: list[Callable[[RunContext], Iterator[str]]] = [_rates, _unread, _idle]
