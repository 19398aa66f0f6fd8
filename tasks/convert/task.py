"""The stages between Megatron and Hugging Face as Flyte tasks: convert a checkpoint, audit the conversion, import a
model for further pretraining, or load a model unchanged."""

from baton import images
from baton.infra.process.launch import Engine
from baton.tasks.convert.artifact import ConversionAudit
from baton.tasks.convert.load_hf_spec import LoadHFSpec, StartFromSpec
from baton.tasks.convert.spec import AuditSpec, ConvertSpec
from baton.tasks.data.artifact import TokenizedCorpus, Tokenizer
from baton.tasks.models.artifact import HFModel
from baton.tasks.pretrain.artifact import MegatronCheckpoint, MegatronWeights
from baton.tasks.run import run
from baton.tasks.stage import stage
from baton.tasks.stage_job import Reads

CONVERT = Engine("convert", "baton.tasks.convert.export", version="2")
AUDIT = Engine("audit", "baton.tasks.convert.audit_stage", version="1")
IMPORT_HF = Engine("import_hf", "baton.tasks.convert.import_stage", version="1")
LOAD_HF = Engine("load_hf", "baton.tasks.convert.load_hf", version="2")


@stage(CONVERT, image=images.TRAIN)
def convert(spec: ConvertSpec, checkpoint: MegatronCheckpoint, tokenizer: Tokenizer) -> HFModel:
    """Export a Megatron checkpoint to Hugging Face safetensors."""
    return run(CONVERT, HFModel, spec, checkpoint=checkpoint, tokenizer=tokenizer)


@stage(AUDIT, image=images.TRAIN)
def audit(spec: AuditSpec, checkpoint: MegatronCheckpoint, model: HFModel, data: TokenizedCorpus) -> ConversionAudit:
    """Check that the exported model equals the trained one in config, weights and logits."""
    reads = Reads(files={"data": TokenizedCorpus.held_out_files}, checks={"model": HFModel.checks})
    return run(AUDIT, ConversionAudit, spec, reads=reads, checkpoint=checkpoint, model=model, data=data)


@stage(IMPORT_HF, image=images.TRAIN)
def import_hf(spec: LoadHFSpec) -> MegatronWeights:
    """Import a Hugging Face model as Megatron weights, for further pretraining."""
    return run(IMPORT_HF, MegatronWeights, spec)


@stage(LOAD_HF, image=images.TRAIN)
def load_hf(spec: StartFromSpec) -> HFModel:
    """Load an existing Hugging Face model."""
    return run(LOAD_HF, HFModel, spec)
