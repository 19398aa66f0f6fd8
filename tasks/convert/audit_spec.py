"""The spec of a conversion audit."""

from pydantic import Field

from tasks.spec import StageSpec


class AuditSpec(StageSpec):
    """Check that an exported model is the trained one."""

    tokens: int = Field(2048, ge=8, le=1_000_000, description="Held-out tokens on which logits are compared")
    bound: float = Field(1e-4, gt=0, le=1e-2, description="Largest |difference| of a logit allowed, in fp32")
