"""GRPO as a stage."""

import images
from infra.launch import Engine
from infra.pod_spec import SAVES
from tasks.artifacts import HFModel, Rows
from tasks.grpo.spec import GRPOSpec
from tasks.stage import run, stage

ENGINES = {"trl": Engine("grpo", "tasks.grpo.grpo", version="2")}


@stage(ENGINES["trl"], image=images.POST_TRAIN, pod=SAVES)
def grpo(spec: GRPOSpec, model: HFModel, rows: Rows) -> HFModel:
    """A model that was rewarded for what it says."""
    return run(ENGINES[spec.engine], HFModel, spec, model=model, rows=rows)
