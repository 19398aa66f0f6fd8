"""GRPO as a typed Flyte task."""

import images
from infra.launch import Engine
from infra.pod_spec import SAVES
from tasks.artifacts import HFModel, Rows
from tasks.grpo.spec import GRPOSpec
from tasks.stage import run, stage

ENGINES = {"trl": Engine("grpo", "tasks.grpo.grpo", version="4", helper="tasks.grpo.rollout_node")}


@stage(ENGINES["trl"], image=images.POST_TRAIN, pod=SAVES)
def grpo(spec: GRPOSpec, model: HFModel, rows: Rows) -> HFModel:
    """Tune a model by rewards of its completions."""
    return run(
        ENGINES[spec.engine],
        HFModel,
        spec,
        processes=spec.layout.torchrun_processes(),
        nodes=spec.layout.nodes,
        helpers=spec.rollout_servers.nodes if spec.rollout_servers else 0,
        max_restarts=spec.survival.max_restarts,
        hang_timeout_s=spec.survival.hang_timeout_s,
        model=model,
        rows=rows,
    )
