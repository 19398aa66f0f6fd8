"""The two ways to a base model, as Flyte tasks: convert one that was trained here, or adopt one."""

import images
from infra.launch import Engine
from tasks.artifacts import HFModel, MegatronCheckpoint, TokenizedCorpus, Tokenizer
from tasks.convert.adopt_spec import AdoptSpec
from tasks.convert.spec import ConvertSpec
from tasks.stage import run, stage

CONVERT = Engine("convert", "tasks.convert.export", version="1")
ADOPT = Engine("adopt", "tasks.convert.adopt", version="1")


@stage(CONVERT, image=images.TRAIN)
def convert(spec: ConvertSpec, checkpoint: MegatronCheckpoint, tokenizer: Tokenizer, data: TokenizedCorpus) -> HFModel:
    """Export a Megatron checkpoint to Hugging Face safetensors, and prove that it is the same model."""
    return run(CONVERT, HFModel, spec, checkpoint=checkpoint, tokenizer=tokenizer, data=data)


@stage(ADOPT, image=images.TRAIN)
def adopt(spec: AdoptSpec) -> HFModel:
    """Take in a Hugging Face model that was made elsewhere."""
    return run(ADOPT, HFModel, spec)
