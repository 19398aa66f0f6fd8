"""Serving as a typed Flyte task."""

from baton import images
from baton.infra.process.launch import Engine
from baton.tasks.models.artifact import HFModel
from baton.tasks.run import run
from baton.tasks.serve.artifact import Endpoint
from baton.tasks.serve.spec import ServeSpec
from baton.tasks.stage import stage
from baton.tasks.stage_job import Reads

ENGINE = Engine("serve", "baton.tasks.serve.serve", version="1")


@stage(ENGINE, image=images.SERVE)
def serve(spec: ServeSpec, model: HFModel) -> Endpoint:
    """Start a server of the model, test and measure it."""
    return run(ENGINE, Endpoint, spec, reads=Reads(checks={"model": HFModel.checks}), model=model)
