"""Custom stages as typed Flyte tasks, one for each type of output."""

from collections.abc import Mapping

from baton import images
from baton.infra.process.launch import Engine
from baton.tasks.artifacts import Artifact
from baton.tasks.custom.spec import CustomSpec
from baton.tasks.models.adapter_base import BASE
from baton.tasks.models.artifact import HFModel
from baton.tasks.run import run
from baton.tasks.stage import stage

ENGINE = Engine("custom", "baton.tasks.custom.engine", version="1")


@stage(ENGINE, image=images.POST_TRAIN)
def custom_model(spec: CustomSpec, inputs: dict[str, Artifact]) -> HFModel:
    """Run a user's function that makes a model."""
    return run(ENGINE, HFModel, spec, inputs=_with_bases(inputs))


@stage(ENGINE, image=images.POST_TRAIN)
def custom_artifact(spec: CustomSpec, inputs: dict[str, Artifact]) -> Artifact:
    """Run a user's function that makes another artifact."""
    return run(ENGINE, Artifact, spec, inputs=_with_bases(inputs))


def _with_bases(inputs: Mapping[str, Artifact]) -> dict[str, Artifact]:
    """Return the inputs, and the bases of those that are adapters."""
    artifacts = dict(inputs)
    for name, artifact in inputs.items():
        if artifact.manifest().kind == HFModel.kind and (base := HFModel.from_place(artifact.place).base_model()):
            artifacts[f"{name}.{BASE}"] = base
    return artifacts
