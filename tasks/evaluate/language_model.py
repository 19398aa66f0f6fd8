"""lm-eval model backed by a vLLM engine: log-likelihoods, rolling log-likelihoods, generation.

lm-eval's own vLLM model requires the distribution "vllm", which the CPU build isn't, and starts its own engine. This
one shares the engine with the other evaluators, and agrees with lm-eval's `hf` model (tested, to 1e-3) for the same
`max_length`: vLLM needs one position for the token that it always generates.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from transformers import PreTrainedTokenizerBase
from vllm import LLM

from tasks.evaluate.answer import scores
from tasks.job import StageError
from tasks.serve.engine import sample

REQUESTS_A_CALL = 256
NEW_TOKENS = 256  # max_gen_toks of a task that has none: lm-eval's default

Answers = Callable[[Callable[[], list[Any]]], list[Any]]  # calls its argument, or returns the saved answer
Scored = tuple[Any, list[int], list[int]]  # lm-eval's key, tokens of the context, tokens of the continuation


class VLLMModel(TemplateLM):  # type: ignore[misc]  # lm-eval has no types
    """The model under evaluation. `engine` is called at the first request without a saved answer."""

    def __init__(
        self,
        engine: Callable[[], LLM],
        tokenizer: PreTrainedTokenizerBase,
        *,
        end_of_text: int,
        positions: int,
        seed: int = 0,
        answers: Answers = lambda ask: ask(),
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        super().__init__()
        self.engine, self.tokenizer, self.end_of_text, self.seed = engine, tokenizer, end_of_text, seed
        self.max_length = positions - 2  # tokens that can be scored: less one of context and one generated
        self.answers, self.progress = answers, progress

    @property
    def eot_token_id(self) -> int:
        return self.end_of_text

    @property
    def prefix_token_id(self) -> int:
        bos = self.tokenizer.bos_token_id
        return self.end_of_text if bos is None else int(bos)

    @property
    def tokenizer_name(self) -> str:
        return "model"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        if add_special_tokens is None and (bos := self.tokenizer.bos_token) and string.startswith(bos):
            add_special_tokens = False
        more = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return list(self.tokenizer.encode(string, **more))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def _loglikelihood_tokens(self, requests: Sequence[Scored], **kwargs: Any) -> list[tuple[float, bool]]:
        """(log-probability in nats, whether greedy decoding gives it) of each continuation."""
        scored: list[tuple[float, bool]] = []
        for begin in range(0, len(requests), REQUESTS_A_CALL):
            self.progress(begin, len(requests))
            ask = partial(self._score, requests[begin : begin + REQUESTS_A_CALL])
            scored += [(logprob, greedy) for logprob, greedy in self.answers(ask)]
        return scored

    def _score(self, requests: Sequence[Scored]) -> list[tuple[float, bool]]:
        # a context that is too long is truncated on the left
        windows = [[*context, *continuation][-(self.max_length + 1) :] for _, context, continuation in requests]
        scored = []
        for (_, _, continuation), steps in zip(requests, scores(self.engine(), windows), strict=True):
            last = steps[-len(continuation) :] if continuation else []
            scored.append((sum(logprob for logprob, _ in last), all(rank == 1 for _, rank in last)))
        return scored

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        windows: list[Scored] = []
        ends: list[int] = []
        for (text,) in (request.args for request in requests):
            pairs = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            windows += [(None, *make_disjoint_window(pair)) for pair in pairs]
            ends.append(len(windows))
        logprobs = [logprob for logprob, _ in self._loglikelihood_tokens(windows)]
        return [sum(logprobs[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        texts: list[str] = []
        calls = _calls([request.args for request in requests])
        for begin, (contexts, kwargs) in calls:
            self.progress(begin, len(requests))
            texts += self.answers(partial(self._generate, contexts, kwargs, self.seed + begin))
        return texts

    def _generate(self, contexts: Sequence[str], gen_kwargs: dict[str, Any], seed: int) -> list[str]:
        kwargs: dict[str, Any] = dict(normalize_gen_kwargs(gen_kwargs, NEW_TOKENS))
        stop = handle_stop_sequences(kwargs.pop("until", None), eos=self.tokenizer.decode(self.end_of_text))
        new_tokens, _ = int(kwargs.pop("max_gen_toks")), kwargs.pop("do_sample", None)
        room = self.max_length - new_tokens
        if room <= 0:
            raise StageError(
                f"evaluate: an lm-eval task generates {new_tokens} tokens, but the model has {self.max_length} "
                "positions for prompt and completion: set a smaller `max_gen_toks` in the task's generation_kwargs"
            )
        params: dict[str, Any] = {"skip_special_tokens": True, "stop": [text for text in stop if text]} | kwargs
        completions = sample(
            self.engine(),
            [self.tok_encode(context)[-room:] for context in contexts],
            max_tokens=new_tokens,
            seed=seed,
            **params,
        )
        # decoded here, since vLLM's text omits an incomplete character at the end
        texts = [self.tokenizer.decode(one.token_ids, skip_special_tokens=True) for one in completions]
        return [str(postprocess_generated_text(text, stop, None)) for text in texts]


def _calls(requests: Sequence[tuple[str, dict[str, Any]]]) -> list[tuple[int, tuple[list[str], dict[str, Any]]]]:
    """Batch consecutive requests with equal generation kwargs: (index of the first, (contexts, kwargs))."""
    calls: list[tuple[int, tuple[list[str], dict[str, Any]]]] = []
    for number, (context, kwargs) in enumerate(requests):
        contexts, last = calls[-1][1] if calls else ([], None)
        if kwargs == last and len(contexts) < REQUESTS_A_CALL:
            contexts.append(context)
        else:
            calls.append((number, ([context], kwargs)))
    return calls
