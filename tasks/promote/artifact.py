"""The artifacts of a decision and of a promotion."""

from baton.infra.tracking.relations import Relation
from baton.tasks.artifacts import Artifact


class Decision(Artifact):
    """`decision.json`: whether a candidate replaces the champion, and the figures behind the decision."""

    kind = "decision"
    order = 130
    family = "finding"
    relation = Relation("compared")
    page = "baton.tasks.promote.page:decision"
    outcome: str  # promoted, kept, rejected
    candidate: str  # digests of the HFModels
    champion: str | None
    metric: str
    improvement: float | None  # in the main metric, with the units of PromotionSpec; None if not available
    bound: float | None  # lower confidence bound of the improvement
    new_text_ratio: float | None = None  # the champion's bits per byte on the new text over those on the old

    def detail(self) -> str:
        return super().detail() if self.improvement is None else f"{100 * self.improvement:+.1f} %"


class Promotion(Artifact):
    """`promotion.json`: the decision that was carried out, and the registry's aliases after it."""

    kind = "promotion"
    order = 160
    family = "finding"
    relation = Relation("promoted")
    page = "baton.tasks.promote.page:promotion"
    registry_name: str
    registry_version: str
    outcome: str
    champion: str | None  # registry versions
    previous: str | None

    def detail(self) -> str:
        return f"version {self.registry_version} {self.outcome}"
