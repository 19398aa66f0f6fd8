"""The post-training methods, one file or folder each: the spec, with what the plan needs to know, and the trainer.

To add one, write its spec, a PostTrainSpec with a `method`, and its trainer, a function of the job, and name the spec
here. It is then part of recipes, plans, the DAG, reports and the lineage. docs/extending.md describes each step.
"""

from baton.tasks.posttrain.methods.dpo.spec import DPOSpec
from baton.tasks.posttrain.methods.grpo.spec import GRPOSpec
from baton.tasks.posttrain.methods.kto import KTOSpec
from baton.tasks.posttrain.methods.sft import SFTSpec
from baton.tasks.posttrain.spec import PostTrainSpec

METHODS: dict[str, type[PostTrainSpec]] = {spec.method.name: spec for spec in (SFTSpec, DPOSpec, KTOSpec, GRPOSpec)}
