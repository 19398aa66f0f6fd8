"""The hand-overs between Megatron and Hugging Face, as Flyte tasks: take in a model to train on, convert what was
trained, audit that, or adopt a model as it is."""

import images
from infra.launch import Engine
from tasks.artifacts import ConversionAudit, HFModel, MegatronCheckpoint, MegatronWeights, TokenizedCorpus, Tokenizer
from tasks.convert.adopt_spec import AdoptSpec
from tasks.convert.audit_spec import AuditSpec
from tasks.convert.spec import ConvertSpec
from tasks.stage import run, stage

CONVERT = Engine("convert", "tasks.convert.export", version="2")
AUDIT = Engine("audit", "tasks.convert.prove", version="1")
TAKE_IN = Engine("take_in", "tasks.convert.take_in", version="1")
ADOPT = Engine("adopt", "tasks.convert.adopt", version="1")


@stage(CONVERT, image=images.TRAIN)
def convert(spec: ConvertSpec, checkpoint: MegatronCheckpoint, tokenizer: Tokenizer) -> HFModel:
    """Export a Megatron checkpoint to Hugging Face safetensors."""
    return run(CONVERT, HFModel, spec, checkpoint=checkpoint, tokenizer=tokenizer)


@stage(AUDIT, image=images.TRAIN)
def audit(spec: AuditSpec, checkpoint: MegatronCheckpoint, model: HFModel, data: TokenizedCorpus) -> ConversionAudit:
    """Prove that an exported model is the trained one, in config, weights and logits."""
    return run(AUDIT, ConversionAudit, spec, checkpoint=checkpoint, model=model, data=data)


@stage(TAKE_IN, image=images.TRAIN)
def take_in(spec: AdoptSpec) -> MegatronWeights:
    """Bring a Hugging Face model to Megatron, to be trained on."""
    return run(TAKE_IN, MegatronWeights, spec)


@stage(ADOPT, image=images.TRAIN)
def adopt(spec: AdoptSpec) -> HFModel:
    """Take in a Hugging Face model that was made elsewhere."""
    return run(ADOPT, HFModel, spec)
