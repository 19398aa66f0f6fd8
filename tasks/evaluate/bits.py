"""Bits per byte: how well a model predicts text, whatever its tokenizer.

    −Σ log2 p(token | what stands before it in its window)  /  UTF-8 bytes of the text

Counted is every token of every document once, and none besides: not the end-of-text token after it.
A document stands after an end-of-text token, as in training. One longer than a window goes on in the
next, which begins with the last token of the one before as its only context.
"""

import math
from collections.abc import Callable, Sequence

from vllm import LLM, SamplingParams

BATCH = 32  # windows a call: what a progress bar moves by


def token_bits(llm: LLM, runs: Sequence[list[int]], progress: Callable[[int, int], None]) -> float:
    """The bits of every token of these runs but each one's first. `progress(runs done, all runs)`."""
    # a new token has to be asked for; it is drawn and not used
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    nats: list[float] = []
    for begin in range(0, len(runs), BATCH):
        progress(begin, len(runs))
        batch = runs[begin : begin + BATCH]
        requests = [{"prompt_token_ids": run} for run in batch]
        for run, output in zip(batch, llm.generate(requests, params, use_tqdm=False), strict=True):
            steps = zip(run[1:], output.prompt_logprobs[1:], strict=True)
            nats.append(-math.fsum(step[token].logprob for token, step in steps))
    progress(len(runs), len(runs))
    return math.fsum(nats) / math.log(2)
