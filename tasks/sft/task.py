"""SFT as a typed Flyte task."""

import images
from infra.launch import Engine
from infra.pod_spec import SAVES
from tasks.artifacts import HFModel, Rows
from tasks.posttrain.spec import announced
from tasks.sft.spec import SFTSpec
from tasks.stage import run, stage

ENGINES = {"trl": Engine("sft", "tasks.sft.sft", version="3")}


@stage(ENGINES["trl"], image=images.POST_TRAIN, pod=SAVES)
def sft(spec: SFTSpec, model: HFModel, rows: Rows) -> HFModel:
    """Fine-tune a model on rows."""
    return run(
        ENGINES[spec.engine], HFModel, announced(spec, model.parameters), **spec.processes(), model=model, rows=rows
    )
