"""GRPO as a stage."""

import images
from infra.launch import Engine
from infra.pod_spec import SAVES
from tasks.artifacts import Corpus, HFModel
from tasks.grpo.spec import GRPOSpec
from tasks.stage import run, stage

ENGINES = {"trl": Engine("grpo", "tasks.grpo.grpo", version="1")}


@stage(ENGINES["trl"], image=images.POST_TRAIN, pod=SAVES)
def grpo(spec: GRPOSpec, model: HFModel, corpus: Corpus) -> HFModel:
    """A model that was rewarded for statements that pass the checks and are its own."""
    return run(ENGINES[spec.engine], HFModel, spec, model=model, corpus=corpus)
