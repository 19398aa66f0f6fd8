"""The typed tasks: is the candidate better than the champion, and who is champion from here on?"""

import images
from infra.launch import Engine
from tasks.artifacts import Decision, EvalReport, Promotion, PublishedModel
from tasks.promote.spec import PromoteSpec, PromotionSpec
from tasks.stage import run, stage

DECIDE = Engine("decide", "tasks.promote.decide", version="1")
PROMOTE = Engine("promote", "tasks.promote.promote", version="1")


@stage(DECIDE, image=images.DATA)
def decide(spec: PromotionSpec, reports: list[EvalReport]) -> Decision:
    """The candidate's report comes first, then the champion's, if there is one."""
    return run(DECIDE, Decision, spec, reports=reports)


@stage(PROMOTE, image=images.DATA, cached=False)
def promote(spec: PromoteSpec, decision: Decision, published: PublishedModel) -> Promotion:
    """Moves the alias `champion` to a promoted version, and writes the decision to the version's tags."""
    return run(PROMOTE, Promotion, spec, decision=decision, published=published)
