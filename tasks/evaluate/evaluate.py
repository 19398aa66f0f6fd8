"""Evaluate one model: bits per byte on held-out documents, and the next statement.

In: "model" (a Hugging Face directory), "corpus", and further corpora "more.0", …: each is a held-out
set of its own. Out:

    report.json         the first set's rates, the same rates of the real statements (the ceiling), and
                        under "sets" each set's rates and what was counted
    completions.jsonl   a line for each prompt: set, id, source, prompt, reference, completion, statement, checks
    documents.jsonl     a line for each scored document: set, id, bytes (UTF-8), bits
    record/samples.json the first few completions, for the report

Every model is asked the same prompts, once each, and draws from its own distribution: no beam, no
retry, and nothing of the answer is repaired before it is judged (see tasks/statements/check.py). The
first set comes first: its scores are the same whatever sets follow it.
"""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.durable import write_json
from tasks.evaluate.held_out import FIRST, HeldOut, choose
from tasks.evaluate.kept import Kept
from tasks.evaluate.spec import EvaluateSpec
from tasks.evaluate.subject import open_subject
from tasks.job import Job, main
from tasks.statements.check import Verdict, check
from tasks.statements.prompt import Prompt
from tasks.statements.summary import Summary, summarise

if TYPE_CHECKING:
    from tasks.evaluate.answer import Answer

SAMPLES = 12


def work(job: Job) -> None:
    spec = job.spec(EvaluateSpec)
    subject = open_subject(job.input("model"))
    corpora = {name: job.input(name) for name in job.inputs if name == FIRST or name.startswith("more.")}
    sets = [choose(name, corpus, subject, spec) for name, corpus in corpora.items()]

    from tasks.evaluate.answer import Asked  # imports vLLM: some seconds that bad input should not cost

    kept = Kept(job)
    asked = Asked(job, spec, subject, kept)

    scores: dict[str, dict[str, float]] = {}
    documents: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    for each in sets:
        completions, bits = asked.answers(each)
        verdicts = [check(*pair) for pair in zip(each.prompts, [one.text for one in completions], strict=True)]
        scored = _documents(each, bits)
        scores[each.name] = _scores(each, scored, verdicts)
        documents += scored
        lines += [_line(each.name, *one) for one in zip(each.prompts, completions, verdicts, strict=True)]
    ceiling = summarise([check(prompt, prompt.reference) for prompt in sets[0].prompts])

    first = scores[FIRST]
    rates = {name: first[name] for name in ("bits_per_byte", *_rates(ceiling))}
    facts = {"label": subject.label, "model_digest": job.inputs["model"]["digest"], "prompts": spec.prompts, **rates}
    job.empty_output()
    write_json(
        job.output / "report.json",
        {
            **facts,
            "ceiling": _rates(ceiling),
            "ended": sum(line["ended"] for line in lines if line["set"] == FIRST) / spec.prompts,
            "sets": scores,
            "sampling": spec.model_dump(mode="json"),
        },
    )
    _write_lines(job.output / "completions.jsonl", lines)
    _write_lines(job.output / "documents.jsonl", documents)
    write_json(job.record / "samples.json", lines[:SAMPLES])
    job.metric(0, **rates)
    job.finish(**facts)
    kept.remove()


def _documents(held_out: HeldOut, bits: list[float]) -> list[dict[str, Any]]:
    """The set's documents with their bits, of the bits of its windows."""
    of_windows = iter(bits)
    return [
        {
            "set": held_out.name,
            "id": each.document.id,
            "bytes": each.bytes,
            "bits": math.fsum(next(of_windows) for _ in each.windows),
        }
        for each in held_out.documents
    ]


def _scores(held_out: HeldOut, documents: list[dict[str, Any]], verdicts: list[Verdict]) -> dict[str, float]:
    """What was counted, and the rates: those of nothing are left out."""
    size = sum(document["bytes"] for document in documents)
    found = {
        "documents": len(documents),
        "bytes": size,
        "tokens": sum(len(each.tokens) for each in held_out.documents),
        "prompts": len(verdicts),
    }
    bits = {"bits_per_byte": math.fsum(document["bits"] for document in documents) / size} if size else {}
    return found | bits | (_rates(summarise(verdicts)) if verdicts else {})


def _rates(summary: Summary) -> dict[str, float]:
    return {name: rate for name, rate in asdict(summary).items() if name != "count"}


def _line(held_out: str, prompt: Prompt, completion: "Answer", verdict: Verdict) -> dict[str, Any]:
    return {
        "set": held_out,
        "id": prompt.id,
        "source": prompt.source,
        "prompt": prompt.text,
        "reference": prompt.reference,
        "completion": completion.text,
        "ended": completion.ended,
        "statement": verdict.statement,
        **verdict.checks,
    }


def _write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main(work)
