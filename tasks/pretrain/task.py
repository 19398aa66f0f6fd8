"""The pretraining stage as a Flyte task."""

from baton import images
from baton.infra.pod_spec import SAVES
from baton.infra.process.launch import Engine, Launch
from baton.tasks.data.artifact import TokenizedCorpus
from baton.tasks.pretrain.artifact import MegatronCheckpoint, MegatronWeights
from baton.tasks.pretrain.spec import PretrainSpec
from baton.tasks.run import run
from baton.tasks.stage import stage

ENGINES = {"megatron": Engine("pretrain", "baton.tasks.pretrain.train", version="4")}


@stage(ENGINES["megatron"], image=images.TRAIN, pod=SAVES)
def pretrain(
    spec: PretrainSpec,
    data: TokenizedCorpus,
    more: list[TokenizedCorpus],
    start: list[MegatronWeights],
    resume: list[MegatronCheckpoint],
) -> MegatronCheckpoint:
    """Train a model on tokenized text, `data` blended with `more`. Training starts from random weights or from the
    weights in `start`, or continues the run in `resume` with its optimizer state. At most one of `start` and `resume`
    has an item, and only one."""
    spec = spec.resolved(spec.model.vocab_size or data.vocab_size, continued=bool(start))
    launch = Launch(
        processes=spec.layout.processes,
        nodes=spec.layout.nodes,
        max_restarts=spec.survival.max_restarts,
        hang_timeout_s=spec.survival.hang_timeout_s,
    )
    engine = ENGINES[spec.engine]
    return run(engine, MegatronCheckpoint, spec, launch=launch, data=data, more=more, start=start, resume=resume)
