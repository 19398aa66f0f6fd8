"""Decide whether the candidate is better than the champion, and promote it, as Flyte tasks."""

from baton import images
from baton.infra.process.launch import Engine
from baton.tasks.evaluate.artifact import EvalReport
from baton.tasks.promote.artifact import Decision, Promotion
from baton.tasks.promote.spec import PromoteSpec, PromotionSpec
from baton.tasks.publish.artifact import PublishedModel
from baton.tasks.run import run
from baton.tasks.stage import stage

DECIDE = Engine("decide", "baton.tasks.promote.decide", version="1")
PROMOTE = Engine("promote", "baton.tasks.promote.promote", version="1")


@stage(DECIDE, image=images.DATA)
def decide(spec: PromotionSpec, reports: list[EvalReport]) -> Decision:
    """Compare the candidate, whose report comes first, with the champion, if there is one."""
    return run(DECIDE, Decision, spec, reports=reports)


@stage(PROMOTE, image=images.DATA, cached=False)
def promote(spec: PromoteSpec, decision: Decision, published: PublishedModel) -> Promotion:
    """Move the alias `champion` to a promoted version, and write the decision to the version's tags."""
    return run(PROMOTE, Promotion, spec, decision=decision, published=published)
