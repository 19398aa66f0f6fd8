"""Serving as a typed Flyte task."""

import images
from infra.process.launch import Engine
from tasks.core.artifacts import Endpoint, HFModel
from tasks.core.run import run
from tasks.core.stage import stage
from tasks.serve.spec import ServeSpec

ENGINE = Engine("serve", "tasks.serve.serve", version="1")


@stage(ENGINE, image=images.SERVE)
def serve(spec: ServeSpec, model: HFModel) -> Endpoint:
    """Start a server of the model, test and measure it."""
    return run(ENGINE, Endpoint, spec, model=model)
