"""Decide whether a candidate replaces the champion.

Inputs: "reports.0", the candidate's evaluation, and "reports.1", the champion's, if there is one. Output: decision.json
with the outcome, its reason as a sentence, and every metric of both models.
"""

from dataclasses import asdict

from baton.infra.storage.durable import write_json
from baton.infra.tracking.redact import redact_spec
from baton.tasks.core.job import Job, main
from baton.tasks.evaluate.results import read_results
from baton.tasks.promote.paired_scores import check_comparable, check_known
from baton.tasks.promote.rule import REJECTED, far, judge, new_text_ratio
from baton.tasks.promote.spec import FAR, PromotionSpec


def work(job: Job) -> None:
    spec = job.spec(PromotionSpec)
    candidate, *others = map(read_results, job.input_list("reports"))
    champion = others[0] if others else None
    check_known(spec, candidate)
    if champion:
        check_comparable(candidate, champion)
    verdict = judge(spec, candidate, champion)
    ratio = new_text_ratio(verdict.measures)
    main_metric = next(measure for measure in verdict.measures if measure.name == spec.metric)
    facts = {
        "outcome": verdict.outcome,
        "candidate": candidate.model_digest,
        "champion": champion.model_digest if champion else None,
        "metric": spec.metric,
        "improvement": main_metric.difference,
        "bound": main_metric.low,
        "new_text_ratio": ratio,
    }
    job.empty_output()
    content = {
        **facts,
        "words": verdict.reason,
        "labels": [evaluation.label for evaluation in (candidate, champion) if evaluation],
        "spec": redact_spec(spec.identity()),
        "measures": [asdict(measure) for measure in verdict.measures],
    }
    write_json(job.output / "decision.json", content)
    if main_metric.difference is not None and main_metric.low is not None:
        job.metric(0, improvement=main_metric.difference, bound=main_metric.low)
    if ratio and ratio >= FAR and verdict.outcome != REJECTED:
        job.notice(f"{far(ratio)}, and the new text counts as old from now on: look at it")
    job.finish(**facts)


if __name__ == "__main__":
    main(work)
