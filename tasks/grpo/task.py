"""GRPO as a typed Flyte task."""

import images
from infra.launch import Engine
from infra.pod_spec import SAVES
from tasks.artifacts import HFModel, Rows
from tasks.grpo.spec import GRPOSpec
from tasks.posttrain.spec import announced
from tasks.stage import run, stage

ENGINES = {"trl": Engine("grpo", "tasks.grpo.grpo", version="5", helper="tasks.grpo.rollout_node")}


@stage(ENGINES["trl"], image=images.POST_TRAIN, pod=SAVES)
def grpo(spec: GRPOSpec, model: HFModel, rows: Rows) -> HFModel:
    """Tune a model by rewards of its completions."""
    return run(
        ENGINES[spec.engine], HFModel, announced(spec, model.parameters), **spec.processes(), model=model, rows=rows
    )
