"""DPO as a typed Flyte task."""

import images
from infra.launch import Engine
from infra.pod_spec import SAVES
from tasks.artifacts import HFModel, Rows
from tasks.dpo.spec import DPOSpec
from tasks.posttrain.spec import announced
from tasks.stage import run, stage

ENGINES = {"trl": Engine("dpo", "tasks.dpo.dpo", version="5")}


@stage(ENGINES["trl"], image=images.POST_TRAIN, pod=SAVES)
def dpo(spec: DPOSpec, model: HFModel, rows: Rows) -> HFModel:
    """Tune a model to prefer the better of two answers."""
    return run(
        ENGINES[spec.engine], HFModel, announced(spec, model.parameters), **spec.processes(), model=model, rows=rows
    )
