"""The artifact of an audit of a conversion."""

from baton.infra.text import share
from baton.infra.tracking.relations import Relation
from baton.tasks.artifacts import Artifact


class ConversionAudit(Artifact):
    """`audit.json`: the evidence that an HFModel equals the MegatronCheckpoint that it was converted from."""

    kind = "conversion_audit"
    order = 100
    family = "finding"
    relation = Relation("measured")
    page = "baton.tasks.convert.page:audit"
    tensors: int
    parameters: int
    tokens: int
    logits_max_abs_diff: float
    argmax_agreement: float

    def detail(self) -> str:
        return f"{share(self.argmax_agreement)} agree"
