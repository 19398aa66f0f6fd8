"""The two ways to a base model, and the proof of the first, as Flyte tasks: convert one that was trained here,
audit that, or adopt one."""

import images
from infra.launch import Engine
from tasks.artifacts import ConversionAudit, HFModel, MegatronCheckpoint, TokenizedCorpus, Tokenizer
from tasks.convert.adopt_spec import AdoptSpec
from tasks.convert.audit_spec import AuditSpec
from tasks.convert.spec import ConvertSpec
from tasks.stage import run, stage

CONVERT = Engine("convert", "tasks.convert.export", version="2")
AUDIT = Engine("audit", "tasks.convert.prove", version="1")
ADOPT = Engine("adopt", "tasks.convert.adopt", version="1")


@stage(CONVERT, image=images.TRAIN)
def convert(spec: ConvertSpec, checkpoint: MegatronCheckpoint, tokenizer: Tokenizer) -> HFModel:
    """Export a Megatron checkpoint to Hugging Face safetensors."""
    return run(CONVERT, HFModel, spec, checkpoint=checkpoint, tokenizer=tokenizer)


@stage(AUDIT, image=images.TRAIN)
def audit(spec: AuditSpec, checkpoint: MegatronCheckpoint, model: HFModel, data: TokenizedCorpus) -> ConversionAudit:
    """Prove that an exported model is the trained one, in config, weights and logits."""
    return run(AUDIT, ConversionAudit, spec, checkpoint=checkpoint, model=model, data=data)


@stage(ADOPT, image=images.TRAIN)
def adopt(spec: AdoptSpec) -> HFModel:
    """Take in a Hugging Face model that was made elsewhere."""
    return run(ADOPT, HFModel, spec)
