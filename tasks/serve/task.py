"""Serving as a typed Flyte task."""

import images
from infra.process.launch import Engine
from tasks.models.artifact import HFModel
from tasks.run import run
from tasks.serve.artifact import Endpoint
from tasks.serve.spec import ServeSpec
from tasks.stage import stage
from tasks.stage_job import Reads

ENGINE = Engine("serve", "tasks.serve.serve", version="1")


@stage(ENGINE, image=images.SERVE)
def serve(spec: ServeSpec, model: HFModel) -> Endpoint:
    """Start a server of the model, test and measure it."""
    return run(ENGINE, Endpoint, spec, reads=Reads(checks={"model": HFModel.checks}), model=model)
