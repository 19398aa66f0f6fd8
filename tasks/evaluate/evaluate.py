"""Evaluate one model: bits per byte of held-out text, rewards of its completions, tasks of lm-eval.

In: "model" (a Hugging Face directory), "corpora.0", … (the first set and the others) and "rows.0", … (in the order of
`spec.sets()`). Out:

    report.json             label, model_digest, headline (the metric that says most)
                            metrics      name -> value, standard_error, count, unit, higher_is_better
                            ceiling      name -> value: the rewards of the rows' own completions
                            sets         bits per byte by corpus: "corpus", "more.0", …
                            questions    of each evaluator, how many were asked and left out
                            spec
    documents.jsonl         a line for each scored document: set, id, bytes (UTF-8), bits
    completions.jsonl       a line for each completion: evaluator, id, prompt, reference, completion, ended, rewards
    lm_eval/<name>.json     lm-eval's own results of an evaluator
    lm_eval.jsonl           a line for each document of its tasks: evaluator, id, rewards (its metrics)
    record/samples.json     the first few completions, for the report

The metrics: `bits_per_byte` (of the first corpus); `<evaluator>.<reward>`, `<evaluator>.pass@<k>`,
`<evaluator>.distinct`; `<evaluator>.<task>.<metric>`. Every model gets the same rows, and its completions are scored
as they are. An evaluator's metrics do not depend on the other evaluators.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.durable import write_json
from infra.progress import say
from tasks.evaluate import questions
from tasks.evaluate.bits import bits_per_byte
from tasks.evaluate.held_out import FIRST, HeldOut, choose
from tasks.evaluate.kept import Kept
from tasks.evaluate.rewarded import Rewarded, rewarded
from tasks.evaluate.spec import EvaluateSpec, EvaluatorSpec
from tasks.evaluate.subject import Subject, open_subject
from tasks.job import Job, StageError, main
from tasks.metric import Metric

if TYPE_CHECKING:
    from tasks.evaluate.answer import EvaluatedModel
    from tasks.evaluate.harness import Harnessed, Tasks

SAMPLES = 12


def work(job: Job) -> None:
    spec = job.spec(EvaluateSpec)
    subject = open_subject(job.input("model"))
    texts = _texts(job)
    if spec.bits_per_byte is None:
        sets = []
    else:
        sets = [choose(name, path, subject, spec.bits_per_byte.held_out_bytes) for name, path in texts.items()]
        _check_text(sets)
    rows = {name: job.input(f"rows.{number}") for number, name in enumerate(spec.sets())}
    asked = {
        name: questions.choose(name, rows[each.data], each, subject, spec.seed)
        for name, each in spec.evaluators().items()
        if each.data is not None
    }

    from tasks.evaluate.answer import EvaluatedModel  # imports vLLM: some seconds that bad input should not cost

    tasks = _load_tasks(job, spec)
    kept = Kept(job)
    model = EvaluatedModel(job, subject, kept, spec)
    documents = [line for each in sets for line in each.lines(model.bits(each.windows))]
    scores = {each.name: _scores(each, documents) for each in sets}
    metrics = {"bits_per_byte": _bits(FIRST, documents)} if sets else {}
    ceiling: dict[str, float] = {}
    told: dict[str, dict[str, Any]] = {}
    lines: list[dict[str, Any]] = []
    results: dict[str, dict[str, Any]] = {}
    items: list[dict[str, Any]] = []
    for name, each in spec.evaluators().items():
        if name in asked:
            found = _rewarded(job, name, each, asked[name].questions, subject, model)
            metrics |= {f"{name}.{key}": metric for key, metric in found.metrics(each).items()}
            ceiling |= {f"{name}.{key}": value for key, value in found.ceiling.items()}
            lines += found.lines(name)
            told[name] = {"asked": len(asked[name].questions), "too_long": asked[name].too_long, "ended": found.ended}
        else:
            harnessed = _harnessed(job, name, tasks[name], subject, model)
            metrics |= {f"{name}.{key}": metric for key, metric in harnessed.metrics.items()}
            results[name] = harnessed.results
            items += [{"evaluator": name} | item for item in harnessed.items]
    _print(metrics, ceiling)

    facts = {
        "label": subject.label,
        "model_digest": job.inputs["model"]["digest"],
        "metrics": {name: asdict(metric) for name, metric in metrics.items()},
        "headline": next((name for name in metrics if name != "bits_per_byte"), next(iter(metrics), "")),
    }
    job.empty_output()
    report = facts | {"ceiling": ceiling, "sets": scores, "questions": told, "spec": spec.identity()}
    write_json(job.output / "report.json", report)
    _write_lines(job.output / "documents.jsonl", documents)
    _write_lines(job.output / "completions.jsonl", lines)
    _write_lines(job.output / "lm_eval.jsonl", items)
    for name, of_lm_eval in results.items():
        (job.output / "lm_eval").mkdir(exist_ok=True)
        write_json(job.output / "lm_eval" / f"{name}.json", of_lm_eval)
    write_json(job.record / "samples.json", lines[:SAMPLES])
    job.metric(0, **{name: metric.value for name, metric in metrics.items()})
    job.finish(**facts)
    kept.remove()


def _texts(job: Job) -> dict[str, Path]:
    """The corpora by the names of their sets."""
    names = sorted((name for name in job.inputs if name.startswith("corpora.")), key=lambda name: int(name[8:]))
    return {f"more.{number - 1}" if number else FIRST: job.input(name) for number, name in enumerate(names)}


def _check_text(sets: list[HeldOut]) -> None:
    """Raises StageError when the first set has no text."""
    if not sets or not sets[0].documents:
        lack = "its corpus has no held-out text: hold out some of it (corpus.held_out)" if sets else "it has no corpus"
        raise StageError(
            f"evaluate.bits_per_byte: {lack}; or leave the measure out with `bits_per_byte: null` under `evaluate`"
        )


def _rewarded(
    job: Job, name: str, spec: EvaluatorSpec, asked: list[questions.Question], subject: Subject, model: "EvaluatedModel"
) -> Rewarded:
    answers = model.completions(name, [each.tokens for each in asked], spec)
    return rewarded(job, name, spec, asked, answers, subject, model.kept)


def _harnessed(job: Job, name: str, tasks: "Tasks", subject: Subject, model: "EvaluatedModel") -> "Harnessed":
    from tasks.evaluate.harness import run_tasks
    from tasks.evaluate.language_model import VLLMModel

    of_lm_eval = VLLMModel(
        model.engine,
        subject.chat,
        end_of_text=subject.end_of_text,
        positions=subject.positions,
        seed=model.seed,
        answers=model.kept.answer,
        progress=lambda done, total: job.progress(done, total, "requests", now=name),
    )
    return run_tasks(tasks, of_lm_eval, model.seed)


def _load_tasks(job: Job, spec: EvaluateSpec) -> dict[str, "Tasks"]:
    """lm-eval's tasks, of each evaluator that has any."""
    names = [name for name, each in spec.evaluators().items() if each.lm_eval]
    if not names:
        return {}
    from tasks.evaluate.harness import load_tasks

    return {name: load_tasks(name, spec.evaluators()[name], job.work / "tasks" / name) for name in names}


def _print(metrics: dict[str, Metric], ceiling: dict[str, float]) -> None:
    """A line for each metric, into the log and onto the terminal."""
    for name, metric in metrics.items():
        best = f", the rows' own completions {ceiling[name]:.4g}" if name in ceiling else ""
        say(f"{name}: {metric}, of {metric.count}{best}")


def _bits(name: str, documents: list[dict[str, Any]]) -> Metric:
    return bits_per_byte([(line["bits"], line["bytes"]) for line in documents if line["set"] == name])


def _scores(held_out: HeldOut, documents: list[dict[str, Any]]) -> dict[str, float]:
    """What was counted of a set, and its bits per byte; those of nothing are left out."""
    found = {
        "documents": len(held_out.documents),
        "bytes": sum(each.bytes for each in held_out.documents),
        "tokens": sum(len(each.tokens) for each in held_out.documents),
    }
    return found | ({"bits_per_byte": _bits(held_out.name, documents).value} if held_out.documents else {})


def _write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main(work)
