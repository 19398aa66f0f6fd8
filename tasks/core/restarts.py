"""The spec of the handling of a stage's dead or hung processes (infra/process/launch.py)."""

from pydantic import Field

from baton.tasks.core.spec import Spec


class Survival(Spec):
    """The handling of dead or hung processes."""

    max_restarts: int = Field(3, ge=0, le=1000, description="Restarts from the newest checkpoint before giving up")
    hang_timeout_s: float = Field(
        600.0,
        gt=0,
        le=86400,
        description="Time without a heartbeat after which a process counts as hung; seconds",
    )
