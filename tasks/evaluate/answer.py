"""Sample completions and score texts with vLLM, saving the answers so that a killed evaluation resumes."""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from vllm import LLM

from baton.tasks.core.job import Job
from baton.tasks.evaluate.bits_per_byte import Window
from baton.tasks.evaluate.model_info import ModelInfo
from baton.tasks.evaluate.saved_answers import SavedAnswers
from baton.tasks.evaluate.spec import EvaluateSpec, EvaluatorSpec
from baton.tasks.vllm.engine import Completion, close_engines, open_engine, sample, scores

# The progress bar's step, and the most work that a resume may have to repeat
PROMPTS_A_CALL = 256
WINDOWS_A_CALL = 32
# Minimum of an engine's length in tokens: below it, vLLM computes fewer tokens in a step, which changes the last bits
LEAST = 64


class Answer(NamedTuple):
    """A completion."""

    text: str  # as a reward gets it in training: without special tokens, but with its thoughts
    ended: bool  # whether an end-of-text or end-of-turn token ended it, not max_new_tokens
    tokens: list[int]  # token ids, with the stop token


class EvaluatedModel:
    """The model under evaluation, loaded at the first request without a saved answer. `length`: tokens of the longest
    known sequence, prompt and completion."""

    def __init__(self, job: Job, info: ModelInfo, saved: SavedAnswers, spec: EvaluateSpec, length: int) -> None:
        self.job, self.info, self.saved, self.seed = job, info, saved, spec.seed
        self._length, self._positions = max(length, LEAST), info.positions
        self._llm: LLM | None = None
        self._open = partial(
            open_engine, info.path, base=info.base, seed=spec.seed, gpu_memory_share=spec.gpu_memory_share
        )

    def engine(self, length: int = 0) -> LLM:
        """Return the engine for sequences of this length. An engine for shorter sequences, which was opened before it
        was known what an environment appends to a prompt, is opened again."""
        if self._llm is not None and length > self._length:
            self._llm, self._length = None, 2 * length
            close_engines()
        if self._llm is None:
            self._llm = self._open(max_model_len=min(self._length, self._positions))
        return self._llm

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
        texts = [self.info.encoder.decoded(one.token_ids, spec.think_end) for one in completions]
        return [Answer(text, one.ended, list(one.token_ids)) for text, one in zip(texts, completions, strict=True)]

    def turns(
        self, prompts: Sequence[list[int]], spec: EvaluatorSpec, rooms: Sequence[int], seed: int, stops: list[int]
    ) -> list[Completion]:
        """Sample a turn after each prompt, of at most as many tokens as the prompt has room for."""
        return sample(
            self.engine(max(len(prompt) + room for prompt, room in zip(prompts, rooms, strict=True))),
            prompts,
            temperature=spec.temperature,
            top_p=spec.top_p,
            max_tokens=rooms,
            seed=seed,
            stop_token_ids=stops,
        )

    def bits(self, windows: Sequence[Window]) -> list[float]:
        """Return the information content in bits of the predicted tokens of each window."""
        bits: list[float] = []
        for begin in range(0, len(windows), WINDOWS_A_CALL):
            self.job.progress(begin, len(windows), "windows", now="bits per byte")
            bits += self.saved.answer(partial(self._bits, windows[begin : begin + WINDOWS_A_CALL]))
        return bits

    def _bits(self, windows: Sequence[Window]) -> list[float]:
        scored = scores(self.engine(), [window.tokens for window in windows])
        predicted = [steps[window.context - 1 :] for window, steps in zip(windows, scored, strict=True)]
        return [-math.fsum(logprob for logprob, _ in steps) / math.log(2) for steps in predicted]
