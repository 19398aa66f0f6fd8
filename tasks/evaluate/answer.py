"""What vLLM answers: a completion of every prompt, and the probability of every token of a text."""

import math
from collections.abc import Sequence

from vllm import LLM, SamplingParams

from tasks.evaluate.held_out import HeldOut
from tasks.evaluate.spec import EvaluateSpec
from tasks.evaluate.subject import Subject
from tasks.job import Job
from tasks.serve.engine import Completion, open_engine, sample

PROMPTS_A_CALL = 256  # and
WINDOWS_A_CALL = 32  # are what the progress bar moves by


def answer(
    job: Job, spec: EvaluateSpec, subject: Subject, sets: Sequence[HeldOut]
) -> list[tuple[list[Completion], list[float]]]:
    """For each set one completion of each prompt, and the bits of each window: of its tokens but the first."""
    llm = open_engine(subject.path, max_model_len=subject.positions, seed=spec.seed)
    return [(complete(job, llm, each.questions, spec), window_bits(job, llm, each.windows)) for each in sets]


def complete(job: Job, llm: LLM, prompts: Sequence[list[int]], spec: EvaluateSpec) -> list[Completion]:
    completions: list[Completion] = []
    for begin in range(0, len(prompts), PROMPTS_A_CALL):
        job.progress(begin, len(prompts), "prompts")
        completions += sample(
            llm,
            prompts[begin : begin + PROMPTS_A_CALL],
            temperature=spec.temperature,
            top_p=spec.top_p,
            max_tokens=spec.max_new_tokens,
        )
    return completions


def window_bits(job: Job, llm: LLM, windows: Sequence[list[int]]) -> list[float]:
    # a new token has to be asked for; it is drawn and not used
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    bits: list[float] = []
    for begin in range(0, len(windows), WINDOWS_A_CALL):
        job.progress(begin, len(windows), "windows")
        batch = windows[begin : begin + WINDOWS_A_CALL]
        requests = [{"prompt_token_ids": window} for window in batch]
        for window, output in zip(batch, llm.generate(requests, params, use_tqdm=False), strict=True):
            steps = zip(window[1:], output.prompt_logprobs[1:], strict=True)
            bits.append(-math.fsum(step[token].logprob for token, step in steps) / math.log(2))
    return bits
