"""SFT as a stage."""

import images
from infra.launch import Engine
from infra.pod_spec import SAVES
from tasks.artifacts import Corpus, HFModel
from tasks.sft.spec import SFTSpec
from tasks.stage import run, stage

ENGINES = {"trl": Engine("sft", "tasks.sft.sft", version="2")}


@stage(ENGINES["trl"], image=images.POST_TRAIN, pod=SAVES)
def sft(spec: SFTSpec, model: HFModel, corpus: Corpus) -> HFModel:
    """A model that answers with one statement."""
    return run(ENGINES[spec.engine], HFModel, spec, model=model, corpus=corpus)
