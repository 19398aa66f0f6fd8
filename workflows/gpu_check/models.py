"""Steps on the trained model: export, audit, vLLM against Transformers, serving."""

import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

from baton.tasks.convert.spec import AuditSpec, ConvertSpec
from baton.tasks.core.manifest import read_manifest
from baton.tasks.serve.spec import LoadSpec, ServeSpec
from baton.workflows.gpu_check.step import Check, CheckFailed

TRAINED = "pretrain-0.5b"
TEXTS = 16
CLOSE = 0.05  # nats: mean difference of log-probabilities, bf16 against fp32


def export(check: Check) -> None:
    """Export the Megatron checkpoint to Hugging Face safetensors."""
    checkpoint, tokenizer = check.artifact(TRAINED), check.artifact("data", "tokenizer")
    began = perf_counter()
    job = check.run("baton.tasks.convert.export", "hf_model", ConvertSpec(), checkpoint=checkpoint, tokenizer=tokenizer)
    check.figure("time", perf_counter() - began, "s")
    size = sum(path.stat().st_size for path in (job / "output").glob("*.safetensors"))
    check.figure("weights", size / 1e9, "GB")


def audit(check: Check) -> None:
    """Prove that both are the same model: config, every weight, logits on held-out text, in fp32 on the CPU."""
    job = check.run(
        "baton.tasks.convert.audit_stage",
        "conversion_audit",
        AuditSpec(tokens=512),
        checkpoint=check.artifact(TRAINED),
        model=check.artifact("export"),
        data=check.artifact("data", "shards"),
    )
    facts = read_manifest(job / "output").facts
    check.figure("largest difference of a logit", facts["logits_max_abs_diff"])
    check.figure("same most likely token", facts["argmax_agreement"], "%")


def vllm(check: Check) -> None:
    """Measure vLLM's load time and sampling speed, and compare its log-probabilities with Transformers'."""
    from baton.tasks.vllm.engine import open_engine, sample, scores

    model, size = check.artifact("export"), check.size
    prompts = _prompts(check)
    began = perf_counter()
    llm = open_engine(model, max_model_len=size.prompt + size.new, seed=0)
    check.figure("load", perf_counter() - began, "s")
    sample(llm, prompts[:1], temperature=1.0, max_tokens=2)  # the first request compiles
    began = perf_counter()
    completions = sample(llm, prompts, temperature=1.0, max_tokens=size.new, ignore_eos=True)
    check.figure("concurrent requests", len(prompts))
    check.figure("sampling", sum(len(done.token_ids) for done in completions) / (perf_counter() - began), "tokens/s")
    texts = prompts[:TEXTS]
    ours = [[logprob for logprob, _ in found] for found in scores(llm, texts)]
    pairs = zip(itertools.chain(*ours), itertools.chain(*_transformers_logprobs(model, texts)), strict=True)
    apart = [abs(one - other) for one, other in pairs]
    check.figure("log-probabilities apart, mean", statistics.fmean(apart), "nats")
    check.figure("log-probabilities apart, at most", max(apart), "nats")
    if not statistics.fmean(apart) <= CLOSE:
        raise CheckFailed(
            f"vLLM's log-probabilities in bf16 differ by {statistics.fmean(apart):.3f} nats on average from "
            f"Transformers' in fp32; at most {CLOSE} expected"
        )


def serve(check: Check) -> None:
    """Start and measure vLLM's server, as the stage does."""
    size = check.size
    load = LoadSpec(
        concurrency=[1, size.requests // 4],
        requests_per_client=1,
        least_requests=size.requests // 4,
        prompt_tokens=size.prompt // 2,
        output_tokens=size.new // 2,
    )
    job = check.run("baton.tasks.serve.serve", "endpoint", ServeSpec(load=load), model=check.artifact("export"))
    endpoint = json.loads((job / "output" / "endpoint.json").read_text())
    alone, many = endpoint["levels"]
    check.figure("start", endpoint["started_s"], "s")
    check.figure("first token, one client", alone["first_token_ms"]["p50"], "ms")
    check.figure(f"answers, {many['concurrency']} clients", many["tokens_per_s"], "tokens/s")


def _prompts(check: Check) -> list[list[int]]:
    """Token ids of the check's rows."""
    from baton.tasks.models.tokenizers import plain

    tokenizer = plain(check.artifact("export"))
    with (check.artifact("data", "rows") / "train.jsonl").open() as lines:
        texts = [json.loads(line)["prompt"] for line in itertools.islice(lines, check.size.requests)]
    return [encoded.ids[: check.size.prompt] for encoded in tokenizer.encode_batch(texts)]


def _transformers_logprobs(model: Path, texts: Sequence[Sequence[int]]) -> Iterator[list[float]]:
    """The log-probabilities of each text's tokens except the first, in nats, computed in fp32."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to(device)
    for text in texts:
        ids = torch.tensor([text], device=device)
        with torch.no_grad():
            distribution = reference(ids).logits[0, :-1].log_softmax(-1)
        yield distribution.gather(1, ids[0, 1:, None])[:, 0].tolist()
