"""The pretraining stage as a Flyte task."""

import images
from infra.launch import Engine, Survival
from tasks.artifacts import MegatronCheckpoint, MegatronWeights, TokenizedCorpus
from tasks.pretrain.spec import PretrainSpec
from tasks.stage import run, stage

ENGINES = {"megatron": Engine("pretrain", "tasks.pretrain.train", version="3")}


@stage(ENGINES["megatron"], image=images.TRAIN)
def pretrain(
    spec: PretrainSpec, data: TokenizedCorpus, more: list[TokenizedCorpus], start: list[MegatronWeights]
) -> MegatronCheckpoint:
    """Train a model on tokenized text, `data` with `more` blended in: from nothing, or from the one in `start`."""
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
    )
