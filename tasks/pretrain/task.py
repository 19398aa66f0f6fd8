"""The pretraining stage as a Flyte task."""

import images
from infra.launch import Engine, Survival
from infra.pod_spec import SAVES
from tasks.artifacts import MegatronCheckpoint, MegatronWeights, TokenizedCorpus
from tasks.pretrain.spec import PretrainSpec
from tasks.stage import run, stage

ENGINES = {"megatron": Engine("pretrain", "tasks.pretrain.train", version="3")}


@stage(ENGINES["megatron"], image=images.TRAIN, pod=SAVES)
def pretrain(
    spec: PretrainSpec,
    data: TokenizedCorpus,
    more: list[TokenizedCorpus],
    start: list[MegatronWeights],
    resume: list[MegatronCheckpoint],
) -> MegatronCheckpoint:
    """Train a model on tokenized text, `data` with `more` blended in: from nothing, from the weights in `start`, or
    on from the run in `resume`, with its optimizer's state. One of the two at most, and one of it."""
    return run(
        ENGINES[spec.engine],
        MegatronCheckpoint,
        spec,
        processes=spec.layout.processes,
        nodes=spec.layout.nodes,
        survival=Survival(spec.survival.max_restarts, spec.survival.hang_timeout_s),
        data=data,
        more=more,
        start=start,
        resume=resume,
    )
