"""What vLLM answers: a completion of every prompt, and the probability of every token of a text."""

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

from vllm import SamplingParams

from tasks.evaluate.held_out import HeldOut
from tasks.evaluate.kept import Kept
from tasks.evaluate.spec import EvaluateSpec
from tasks.evaluate.subject import Subject
from tasks.job import Job
from tasks.serve.engine import open_engine, sample

PROMPTS_A_CALL = 256  # and
WINDOWS_A_CALL = 32  # are what the progress bar moves by, and what a resume may have to ask again


class Answer(NamedTuple):
    """A completion."""

    text: str  # without the end-of-text token
    ended: bool  # by it, not by max_new_tokens


class Asked:
    """A model under evaluation: loaded when it is asked something that an earlier attempt has not asked."""

    def __init__(self, job: Job, spec: EvaluateSpec, subject: Subject, kept: Kept) -> None:
        self.job, self.spec, self.kept = job, spec, kept
        self.engine = cache(partial(open_engine, subject.path, max_model_len=subject.positions, seed=spec.seed))

    def answers(self, held_out: HeldOut) -> tuple[list[Answer], list[float]]:
        """One completion of each prompt, and the bits of each window: of its tokens but the first."""
        return self._completions(held_out.questions), self._bits(held_out.windows)

    def _completions(self, prompts: Sequence[list[int]]) -> list[Answer]:
        found: list[Answer] = []
        for begin in range(0, len(prompts), PROMPTS_A_CALL):
            self.job.progress(begin, len(prompts), "prompts")
            ask = partial(self._complete, prompts[begin : begin + PROMPTS_A_CALL], self.spec.seed + begin)
            found += [Answer(*each) for each in self.kept.answer(ask)]
        return found

    def _complete(self, prompts: Sequence[list[int]], seed: int) -> list[Answer]:
        completions = sample(
            self.engine(),
            prompts,
            temperature=self.spec.temperature,
            top_p=self.spec.top_p,
            max_tokens=self.spec.max_new_tokens,
            seed=seed,
        )
        return [Answer(each.text, each.ended) for each in completions]

    def _bits(self, windows: Sequence[list[int]]) -> list[float]:
        bits: list[float] = []
        for begin in range(0, len(windows), WINDOWS_A_CALL):
            self.job.progress(begin, len(windows), "windows")
            batch = windows[begin : begin + WINDOWS_A_CALL]
            bits += self.kept.answer(partial(self._window_bits, batch))
        return bits

    def _window_bits(self, windows: Sequence[list[int]]) -> list[float]:
        # a new token has to be asked for; it is drawn and not used
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        requests = [{"prompt_token_ids": window} for window in windows]
        bits: list[float] = []
        for window, output in zip(windows, self.engine().generate(requests, params, use_tqdm=False), strict=True):
            steps = zip(window[1:], output.prompt_logprobs[1:], strict=True)
            bits.append(-math.fsum(step[token].logprob for token, step in steps) / math.log(2))
        return bits
