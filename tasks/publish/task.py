"""Publish a model, as a Flyte task."""

from baton import images
from baton.infra.process.launch import Engine
from baton.tasks.artifacts import Artifact
from baton.tasks.core.manifest import ALL, MANIFEST
from baton.tasks.evaluate.artifact import EvalReport
from baton.tasks.models.artifact import HFModel
from baton.tasks.publish.artifact import PublishedModel
from baton.tasks.publish.spec import PublishSpec
from baton.tasks.run import run
from baton.tasks.stage import stage
from baton.tasks.stage_job import Reads

ENGINE = Engine("publish", "baton.tasks.publish.publish", version="7", repeats=True)


@stage(ENGINE, image=images.DATA, cached=False, reports_on=("models", "reports", "parts"))
def publish(
    spec: PublishSpec,
    model: HFModel,
    models: list[HFModel],
    reports: list[EvalReport],
    parts: dict[str, Artifact],
) -> PublishedModel:
    """Publish the model with its card, as a version in the model registry. This runs in each execution, since the
    registry may be another one or have changed. The card covers `models` (those from which it was tuned), their
    `reports`, and `parts` by name: corpus, tokenizer, …"""
    before = [other for other in models if (other.digest, other.label) != (model.digest, model.label)]
    reads = Reads({"model": (*ALL, MANIFEST)} | dict.fromkeys(("models", "reports", "parts"), (MANIFEST,)))
    return run(ENGINE, PublishedModel, spec, reads=reads, model=model, models=before, reports=reports, parts=parts)
