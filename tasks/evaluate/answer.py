"""A model under evaluation: completions of prompts, and the probability of every token of a text, from vLLM."""

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

from vllm import LLM, SamplingParams

from tasks.evaluate.kept import Kept
from tasks.evaluate.spec import EvaluateSpec, EvaluatorSpec
from tasks.evaluate.subject import Subject
from tasks.job import Job
from tasks.serve.engine import open_engine, sample

# the progress bar's steps, and the most that a resume may have to repeat
PROMPTS_A_CALL = 256
WINDOWS_A_CALL = 32


class Answer(NamedTuple):
    """A completion."""

    text: str  # without the token that ended it
    ended: bool  # by an end-of-text or end-of-turn token, not by max_new_tokens
    tokens: list[int]  # with the token that ended it


class EvaluatedModel:
    """It is loaded at the first request that an earlier attempt has not answered."""

    def __init__(self, job: Job, subject: Subject, kept: Kept, spec: EvaluateSpec) -> None:
        self.job, self.kept, self.seed = job, kept, spec.seed
        self.engine = cache(
            partial(
                open_engine,
                subject.path,
                max_model_len=subject.positions,
                seed=spec.seed,
                gpu_memory_share=spec.gpu_memory_share,
            )
        )

    def completions(self, name: str, prompts: Sequence[list[int]], spec: EvaluatorSpec) -> list[list[Answer]]:
        """`spec.samples` completions of each prompt. They do not depend on other requests."""
        found: list[list[Answer]] = []
        for begin in range(0, len(prompts), PROMPTS_A_CALL):
            self.job.progress(begin, len(prompts), "prompts", now=name)
            ask = partial(self._complete, prompts[begin : begin + PROMPTS_A_CALL], spec, begin)
            answers = [Answer(*each) for each in self.kept.answer(ask)]
            found += [answers[at : at + spec.samples] for at in range(0, len(answers), spec.samples)]
        return found

    def _complete(self, prompts: Sequence[list[int]], spec: EvaluatorSpec, begin: int) -> list[Answer]:
        completions = sample(
            self.engine(),
            prompts,
            temperature=spec.temperature,
            top_p=spec.top_p,
            max_tokens=spec.max_new_tokens,
            n=spec.samples,
            seed=self.seed + begin * spec.samples,
        )
        return [Answer(each.text, each.ended, list(each.token_ids)) for each in completions]

    def bits(self, windows: Sequence[list[int]]) -> list[float]:
        """The bits of each window: of its tokens but the first."""
        bits: list[float] = []
        for begin in range(0, len(windows), WINDOWS_A_CALL):
            self.job.progress(begin, len(windows), "windows", now="bits per byte")
            bits += self.kept.answer(partial(self._bits, windows[begin : begin + WINDOWS_A_CALL]))
        return bits

    def _bits(self, windows: Sequence[list[int]]) -> list[float]:
        scored = scores(self.engine(), windows)
        return [-math.fsum(logprob for logprob, _ in window) / math.log(2) for window in scored]


def scores(llm: LLM, windows: Sequence[Sequence[int]]) -> list[list[tuple[float, int]]]:
    """(log-probability in nats, rank) of each token of a window but the first; rank 1 is the likeliest token."""
    # a new token has to be asked for; it is drawn and not used
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    requests = [{"prompt_token_ids": list(window)} for window in windows]
    found = []
    for window, output in zip(windows, llm.generate(requests, params, use_tqdm=False), strict=True):
        steps = zip(window[1:], output.prompt_logprobs[1:], strict=True)
        found.append([(step[token].logprob, step[token].rank) for token, step in steps])
    return found
