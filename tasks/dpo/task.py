"""DPO as a stage."""

import images
from infra.launch import Engine
from infra.pod_spec import SAVES
from tasks.artifacts import Corpus, HFModel
from tasks.dpo.spec import DPOSpec
from tasks.stage import run, stage

ENGINES = {"trl": Engine("dpo", "tasks.dpo.dpo", version="2")}


@stage(ENGINES["trl"], image=images.POST_TRAIN, pod=SAVES)
def dpo(spec: DPOSpec, model: HFModel, corpus: Corpus) -> HFModel:
    """A model that prefers the real statement to its own failures."""
    return run(ENGINES[spec.engine], HFModel, spec, model=model, corpus=corpus)
