"""The artifact of a served model."""

from baton.infra.text import number
from baton.infra.tracking.relations import Relation
from baton.tasks.artifacts import Artifact


class Endpoint(Artifact):
    """`endpoint.json`: the settings with which a model is served, and its measured throughput and latency."""

    kind = "endpoint"
    order = 140
    family = "finding"
    relation = Relation("serves", of="model")
    page = "baton.tasks.serve.page:endpoint"
    label: str
    model_digest: str
    requests_per_s: float  # the highest measured
    tokens_per_s: float
    first_token_ms: float  # median, one request at a time

    def detail(self) -> str:
        return f"{number(self.tokens_per_s)} tokens/s"
