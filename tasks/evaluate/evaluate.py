"""Evaluate one model with vLLM: bits per byte on held-out documents, and the next statement.

In: "model" (a Hugging Face directory) and "corpus". Out:

    report.json         the rates, the same rates of the real statements (the ceiling), what was counted
    completions.jsonl   a line for each prompt: id, source, prompt, reference, completion, statement, checks
    record/samples.json the first few of them, for the report

Every model is asked the same prompts, once each, and draws from its own distribution: no beam, no
retry, and nothing of the answer is repaired before it is judged (see tasks/statements/check.py).
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from tasks.data.documents import Document, read_documents
from tasks.evaluate.spec import EvaluateSpec
from tasks.evaluate.windows import held_out_texts, windows
from tasks.job import Job, StageError, main, write_json
from tasks.manifest import read_manifest
from tasks.statements.check import Verdict, check
from tasks.statements.extract import extract
from tasks.statements.prompt import Prompt
from tasks.statements.summary import Summary, summarise

if TYPE_CHECKING:
    from vllm import LLM

    from tasks.serve.engine import Completion

BATCH = 256  # prompts a call: what the progress bar moves by
SAMPLES = 12


def work(job: Job) -> None:
    spec = job.spec(EvaluateSpec)
    model, corpus = job.input("model"), job.input("corpus")
    label, positions = _facts(model, spec)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    documents = list(read_documents(corpus, "held_out"))
    prompts = choose_prompts(documents, tokenizer, spec, positions)
    texts = held_out_texts(documents, spec.held_out_bytes)

    from tasks.serve.engine import open_engine  # vLLM: ten seconds that bad input should not cost

    llm = open_engine(model, max_model_len=positions, seed=spec.seed)
    completions = _complete(job, llm, tokenizer, prompts, spec)
    verdicts = [check(prompt, completion.text) for prompt, completion in zip(prompts, completions, strict=True)]
    summary = summarise(verdicts)
    ceiling = summarise([check(prompt, prompt.reference) for prompt in prompts])
    bits = _bits_per_byte(job, llm, tokenizer, texts, positions)

    job.output.mkdir(parents=True, exist_ok=True)
    facts = {
        "label": label,
        "model_digest": job.inputs["model"]["digest"],
        "prompts": len(prompts),
        "bits_per_byte": bits["bits_per_byte"],
        **_rates(summary),
    }
    write_json(
        job.output / "report.json",
        {
            **facts,
            "ceiling": _rates(ceiling),
            "ended": sum(completion.ended for completion in completions) / len(completions),
            "held_out": bits,
            "sampling": spec.model_dump(mode="json"),
        },
    )
    lines = [_line(*each) for each in zip(prompts, completions, verdicts, strict=True)]
    (job.output / "completions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(job.record / "samples.json", lines[:SAMPLES])
    job.metric(0, bits_per_byte=bits["bits_per_byte"], **_rates(summary))
    job.finish(**facts)


def choose_prompts(
    documents: list[Document], tokenizer: Tokenizer, spec: EvaluateSpec, positions: int
) -> list[Prompt]:
    """The first `spec.prompts` prompts that leave room for a completion. Raises StageError when there
    are fewer."""
    found = extract(
        documents,
        seed=spec.seed,
        per_function=spec.prompts_per_function,
        max_prompt_chars=spec.max_prompt_chars,
    )
    room = positions - spec.max_new_tokens
    fitting = [prompt for prompt in found if len(_tokens(tokenizer, prompt.text)) <= room]
    if len(fitting) < spec.prompts:
        raise StageError(
            f"evaluate.prompts: {spec.prompts}: the {len(documents)} held-out documents have {len(fitting)} "
            f"places to ask about (and {len(found) - len(fitting)} too long for the model's {positions} positions); "
            "ask for fewer, take more out of each function (prompts_per_function), or hold out more of the corpus"
        )
    return fitting[: spec.prompts]


def _facts(model: Path, spec: EvaluateSpec) -> tuple[str, int]:
    """The model's label and its number of positions."""
    facts = read_manifest(model).facts
    positions = int(facts["max_positions"])
    if spec.max_new_tokens >= positions:
        raise StageError(
            f"evaluate.max_new_tokens: {spec.max_new_tokens}: the model has {positions} positions for the prompt "
            "and the completion together; ask for fewer tokens"
        )
    return str(facts["label"]), positions


def _complete(
    job: Job, llm: LLM, tokenizer: Tokenizer, prompts: list[Prompt], spec: EvaluateSpec
) -> list[Completion]:
    completions: list[Completion] = []
    for begin in range(0, len(prompts), BATCH):
        job.progress(begin, len(prompts), "prompts")
        asked = [_tokens(tokenizer, prompt.text) for prompt in prompts[begin : begin + BATCH]]
        completions += sample(
            llm, asked, temperature=spec.temperature, top_p=spec.top_p, max_tokens=spec.max_new_tokens
        )
    return completions


def _bits_per_byte(
    job: Job, llm: LLM, tokenizer: Tokenizer, texts: list[str], positions: int
) -> dict[str, float]:
    encoded = [_tokens(tokenizer, text) for text in texts]
    # one position is left for the token that vLLM has to be asked for
    runs = [run for tokens in encoded for run in windows(tokens, tokenizer.eos_token_id, positions - 1)]
    bits = token_bits(llm, runs, lambda done, all_: job.progress(done, all_, "windows"))
    size = sum(len(text.encode()) for text in texts)
    return {
        "documents": len(texts),
        "bytes": size,
        "tokens": sum(map(len, encoded)),
        "bits_per_byte": bits / size,
    }


def _tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


def _rates(summary: Summary) -> dict[str, float]:
    return {name: rate for name, rate in asdict(summary).items() if name != "count"}


def _line(prompt: Prompt, completion: Completion, verdict: Verdict) -> dict[str, Any]:
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
