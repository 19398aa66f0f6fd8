"""Evaluate one model: bits per byte on held-out documents, and the next statement.

In: "model" (a Hugging Face directory) and "corpus". Out:

    report.json         the rates, the same rates of the real statements (the ceiling), what was counted
    completions.jsonl   a line for each prompt: id, source, prompt, reference, completion, statement, checks
    record/samples.json the first few of them, for the report

Every model is asked the same prompts, once each, and draws from its own distribution: no beam, no
retry, and nothing of the answer is repaired before it is judged (see tasks/statements/check.py).
"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tasks.data.documents import Document, read_documents
from tasks.evaluate.bits import held_out_texts, windows
from tasks.evaluate.spec import EvaluateSpec
from tasks.evaluate.subject import Subject, open_subject
from tasks.job import Job, StageError, main, write_json
from tasks.statements.check import Verdict, check
from tasks.statements.extract import extract
from tasks.statements.prompt import Prompt
from tasks.statements.summary import Summary, summarise

if TYPE_CHECKING:
    from tasks.serve.engine import Completion

SAMPLES = 12


def work(job: Job) -> None:
    spec = job.spec(EvaluateSpec)
    subject = open_subject(job.input("model"))
    documents = list(read_documents(job.input("corpus"), "held_out"))
    prompts = choose_prompts(documents, subject, spec)
    texts = held_out_texts(documents, spec.held_out_bytes)
    tokens = [subject.tokens(text) for text in texts]
    # one position is kept for the token that vLLM has to be asked for
    runs = [run for each in tokens for run in windows(each, subject.end_of_text, subject.positions - 1)]

    from tasks.evaluate.answer import answer  # imports vLLM: some seconds that bad input should not cost

    completions, bits = answer(job, spec, subject, [subject.tokens(prompt.text) for prompt in prompts], runs)
    verdicts = [check(prompt, completion.text) for prompt, completion in zip(prompts, completions, strict=True)]
    ceiling = summarise([check(prompt, prompt.reference) for prompt in prompts])

    size = sum(len(text.encode()) for text in texts)
    rates = {"bits_per_byte": bits / size, **_rates(summarise(verdicts))}
    facts = {"label": subject.label, "model_digest": job.inputs["model"]["digest"], "prompts": len(prompts), **rates}
    job.output.mkdir(parents=True, exist_ok=True)
    write_json(
        job.output / "report.json",
        {
            **facts,
            "ceiling": _rates(ceiling),
            "ended": sum(completion.ended for completion in completions) / len(completions),
            "held_out": {"documents": len(texts), "bytes": size, "tokens": sum(map(len, tokens))},
            "sampling": spec.model_dump(mode="json"),
        },
    )
    lines = [_line(*each) for each in zip(prompts, completions, verdicts, strict=True)]
    (job.output / "completions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(job.record / "samples.json", lines[:SAMPLES])
    job.metric(0, **rates)
    job.finish(**facts)


def choose_prompts(documents: list[Document], subject: Subject, spec: EvaluateSpec) -> list[Prompt]:
    """The first `spec.prompts` prompts that leave room for a completion. Raises StageError when there
    are fewer."""
    room = subject.positions - spec.max_new_tokens
    if room <= 0:
        raise StageError(
            f"evaluate.max_new_tokens: {spec.max_new_tokens}: the model has {subject.positions} positions for the "
            "prompt and the completion together; ask for fewer tokens"
        )
    found = extract(
        documents, seed=spec.seed, per_function=spec.prompts_per_function, max_prompt_chars=spec.max_prompt_chars
    )
    fitting = [prompt for prompt in found if len(subject.tokens(prompt.text)) <= room]
    if len(fitting) < spec.prompts:
        raise StageError(
            f"evaluate.prompts: {spec.prompts}: the {len(documents)} held-out documents have {len(fitting)} places "
            f"to ask about (and {len(found) - len(fitting)} too long for the model's {subject.positions} positions); "
            "ask for fewer, take more out of each function (prompts_per_function), or hold out more of the corpus"
        )
    return fitting[: spec.prompts]


def _rates(summary: Summary) -> dict[str, float]:
    return {name: rate for name, rate in asdict(summary).items() if name != "count"}


def _line(prompt: Prompt, completion: "Completion", verdict: Verdict) -> dict[str, Any]:
    return {
        "id": prompt.id,
        "source": prompt.source,
        "prompt": prompt.text,
        "reference": prompt.reference,
        "completion": completion.text,
        "ended": completion.ended,
        "statement": verdict.statement,
        **verdict.checks,
    }


if __name__ == "__main__":
    main(work)
