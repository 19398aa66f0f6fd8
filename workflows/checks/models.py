"""Check the model that a run starts from: its files are complete and can be used, and the engines of the stages can run
it."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from baton.infra.progress import say_once
from baton.infra.storage.buckets import StorageError, is_bucket
from baton.tasks.convert.families import FAMILIES
from baton.tasks.convert.load_hf_spec import LoadHFSpec
from baton.tasks.core.job import StageError
from baton.tasks.core.spec import Problem, StageSpec
from baton.tasks.models.hf_files import HFModelFiles, ModelFilesError
from baton.tasks.models.model_spec import FAMILIES as SHAPES
from baton.tasks.posttrain.adapter_spec import linear_layers
from baton.tasks.vllm.architectures import HEAD_SIZES, has_architecture, unsupported
from baton.workflows.checks.run_context import RunContext, devices_of, runs_on_a_cluster
from baton.workflows.dag.post_training import BASE


def problems_of_models(context: RunContext) -> Iterator[Problem]:
    """The problems of `start_from` and `init_from`."""
    for section, check in (("start_from", _tuned), ("init_from", _imported)):
        spec: LoadHFSpec | None = context.specs.get(section)
        if spec is None or spec.missing():
            continue
        try:
            files = spec.described()
            messages = check(context, spec, files) if files else []
        except (ModelFilesError, StageError) as error:
            messages = [str(error)]
        except StorageError as error:
            say_once(f"{section}.model is not checked: {error.message}")
            continue
        yield from (Problem(f"{section}.model", spec.model, message) for message in messages)


def adapted_layers(context: RunContext) -> Iterator[Problem]:
    """Check that the model that the run begins with, and those tuned from it, have the layers that adapters name."""
    of_these, layers = {BASE}, None
    for step in context.tunings():
        if step.start_from not in of_these:
            continue  # it starts from a custom stage's model
        of_these.add(step.name)
        targets = step.spec.adapter.lora.targets if step.spec.adapter else "all-linear"
        if targets == "all-linear":
            continue
        layers = layers or _linear(context)
        if layers and (unknown := sorted({*targets} - layers)):
            allowed = f"layers that the model has: {', '.join(sorted(layers))}; or all-linear"
            yield Problem(f"{step.path}.adapter.lora.targets", ", ".join(unknown), allowed)


def _linear(context: RunContext) -> set[str] | None:
    """The names of the linear layers of the run's first model, if they are known here."""
    if "pretrain" in context.specs:
        return {*linear_layers(context.specs["pretrain"].model)}
    spec: LoadHFSpec | None = context.specs.get("start_from")
    try:
        if spec and not spec.missing() and (files := spec.described()) and (folder := to_open(spec)):
            from baton.tasks.convert.check_model import check_model  # imports Transformers

            return check_model(folder, files).linear
    except (ModelFilesError, StageError, StorageError):
        pass  # problems_of_models() reports it
    return None


def with_vllm(context: RunContext) -> dict[str, StageSpec]:
    """The stages that open the model with vLLM, by their path."""
    return {path: spec for path, spec in context.stages().items() if spec.uses_vllm()}


def _tuned(context: RunContext, spec: LoadHFSpec, files: HFModelFiles) -> list[str]:
    """The problems of a model to tune. Raises StageError."""
    issues, stages = files.problems(), with_vllm(context)
    names, kind = ", ".join(stages), str(files.config.get("model_type"))
    if stages and files.architecture and not has_architecture(files.architecture, kind):
        issues.append(f"a model of an architecture that vLLM ({names}) supports; this one is {files.architecture}")
    if stages:
        issues += [f"a model with {what}" for what in unsupported(str(files.architecture), files.config)]
    if stages and (other := files.head_sizes - {*HEAD_SIZES}):
        sizes = f"{', '.join(map(str, HEAD_SIZES))}, which vLLM ({names}) supports"
        issues.append(f"a model whose attention heads have one of the sizes {sizes}; here {', '.join(map(str, other))}")
    if files.latent and (on_cpu := [path for path, stage in stages.items() if _on_a_cpu(context, stage)]):
        issues.append(f"a model without latent attention, which vLLM ({', '.join(on_cpu)}) supports only on GPUs")
    if not issues and (folder := to_open(spec)):
        from baton.tasks.convert.check_model import check_model  # imports Transformers

        check_model(folder, files)
    return issues


def _imported(context: RunContext, spec: LoadHFSpec, files: HFModelFiles) -> list[str]:
    """The problems of a model whose pretraining continues. Raises StageError."""
    kind = files.config.get("model_type")
    if kind not in FAMILIES:
        return [f"a model of a family that `pretrain` continues ({', '.join(SHAPES)}); this one is {kind}"]
    if folder := to_open(spec):
        from baton.tasks.convert.import_model import description, open_hugging_face  # imports Transformers

        description(open_hugging_face(folder), None)
    return []


def _on_a_cpu(context: RunContext, spec: StageSpec) -> bool:
    return not context.machine.gpus and not runs_on_a_cluster() and devices_of(context, spec) == [None]


def to_open(spec: LoadHFSpec) -> Path | None:
    """The model's folder, if it can be opened here."""
    can = not is_bucket(spec.model) and not runs_on_a_cluster() and importlib.util.find_spec("transformers")
    return spec.folder() if can else None
