"""Decide whether a candidate replaces the champion.

In: "reports.0", the candidate's evaluation, and "reports.1", the champion's, if there is one. Out: decision.json with
the outcome, its reason as a sentence, and every metric of both models.
"""

from dataclasses import asdict

from infra.durable import write_json
from tasks.evaluate.results import read_results
from tasks.job import Job, main
from tasks.promote.paired_scores import check_comparable, check_known
from tasks.promote.rule import judge
from tasks.promote.spec import PromotionSpec


def work(job: Job) -> None:
    spec = job.spec(PromotionSpec)
    candidate, *others = map(read_results, job.input_list("reports"))
    champion = others[0] if others else None
    check_known(spec, candidate)
    if champion:
        check_comparable(candidate, champion)
    verdict = judge(spec, candidate, champion)
    main_metric = next(measure for measure in verdict.measures if measure.name == spec.metric)
    facts = {
        "outcome": verdict.outcome,
        "candidate": candidate.model_digest,
        "champion": champion.model_digest if champion else None,
        "metric": spec.metric,
        "improvement": main_metric.difference,
        "bound": main_metric.low,
    }
    job.empty_output()
    content = {
        **facts,
        "words": verdict.reason,
        "labels": [evaluation.label for evaluation in (candidate, champion) if evaluation],
        "spec": spec.identity(),
        "measures": [asdict(measure) for measure in verdict.measures],
    }
    write_json(job.output / "decision.json", content)
    if main_metric.difference is not None and main_metric.low is not None:
        job.metric(0, improvement=main_metric.difference, bound=main_metric.low)
    job.finish(**facts)


if __name__ == "__main__":
    main(work)
