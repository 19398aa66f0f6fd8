"""Sample completions and score texts with vLLM, saving the answers for a resume."""

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

from vllm import LLM, SamplingParams

from tasks.evaluate.model_info import ModelInfo
from tasks.evaluate.saved_answers import SavedAnswers
from tasks.evaluate.spec import EvaluateSpec, EvaluatorSpec
from tasks.job import Job
from tasks.serve.engine import Completion, open_engine, sample

# the progress bar's step, and the most work that a resume may have to repeat
PROMPTS_A_CALL = 256
WINDOWS_A_CALL = 32


class Answer(NamedTuple):
    """A completion."""

    text: str  # without the stop token
    ended: bool  # by an end-of-text or end-of-turn token, not by max_new_tokens
    tokens: list[int]  # with the stop token


class EvaluatedModel:
    """The model under evaluation, loaded at the first request without a saved answer."""

    def __init__(self, job: Job, info: ModelInfo, saved: SavedAnswers, spec: EvaluateSpec) -> None:
        self.job, self.saved, self.seed = job, saved, spec.seed
        self.engine = cache(
            partial(
                open_engine,
                info.path,
                base=info.base,
                max_model_len=info.positions,
                seed=spec.seed,
                gpu_memory_share=spec.gpu_memory_share,
            )
        )

    def completions(self, name: str, prompts: Sequence[list[int]], spec: EvaluatorSpec) -> list[list[Answer]]:
        """Sample `spec.samples` completions of each prompt, independent of all other requests."""
        completions: list[list[Answer]] = []
        for begin in range(0, len(prompts), PROMPTS_A_CALL):
            self.job.progress(begin, len(prompts), "prompts", now=name)
            ask = partial(self._complete, prompts[begin : begin + PROMPTS_A_CALL], spec, begin)
            answers = [Answer(*fields) for fields in self.saved.answer(ask)]
            completions += [answers[at : at + spec.samples] for at in range(0, len(answers), spec.samples)]
        return completions

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
        return [Answer(completion.text, completion.ended, list(completion.token_ids)) for completion in completions]

    def turns(
        self, prompts: Sequence[list[int]], spec: EvaluatorSpec, most: int, seed: int, stops: list[int]
    ) -> list[Completion]:
        """Sample a turn of at most `most` tokens after each prompt."""
        return sample(
            self.engine(),
            prompts,
            temperature=spec.temperature,
            top_p=spec.top_p,
            max_tokens=most,
            seed=seed,
            stop_token_ids=stops,
        )

    def bits(self, windows: Sequence[list[int]]) -> list[float]:
        """Information content of each window in bits; its first token is context and not counted."""
        bits: list[float] = []
        for begin in range(0, len(windows), WINDOWS_A_CALL):
            self.job.progress(begin, len(windows), "windows", now="bits per byte")
            bits += self.saved.answer(partial(self._bits, windows[begin : begin + WINDOWS_A_CALL]))
        return bits

    def _bits(self, windows: Sequence[list[int]]) -> list[float]:
        scored = scores(self.engine(), windows)
        return [-math.fsum(logprob for logprob, _ in window) / math.log(2) for window in scored]


def scores(llm: LLM, windows: Sequence[Sequence[int]]) -> list[list[tuple[float, int]]]:
    """(log-probability in nats, rank) of every token of a window but the first; rank 1 is the likeliest token."""
    # vLLM generates at least one token; it is discarded
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    requests = [{"prompt_token_ids": list(window)} for window in windows]
    scored = []
    for window, output in zip(windows, llm.generate(requests, params, use_tqdm=False), strict=True):
        steps = zip(window[1:], output.prompt_logprobs[1:], strict=True)
        scored.append([(step[token].logprob, step[token].rank) for token, step in steps])
    return scored
