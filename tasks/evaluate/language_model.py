"""lm-eval's view of a vLLM engine: log-likelihoods, rolling log-likelihoods, generation.

lm-eval's own vLLM model asks for the distribution "vllm", which the CPU build is not, and starts an engine of its own.
This one is handed the engine that the other evaluators use, and agrees with lm-eval's `hf` model (tested, to 1e-3)
where that is given the same `max_length`: vLLM wants a position for the token that it has to be asked for.
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
NEW_TOKENS = 256  # at most, where a task does not say: lm-eval's own default

Answers = Callable[[Callable[[], list[Any]]], list[Any]]  # calls what it is given, or has its answer already
Scored = tuple[Any, list[int], list[int]]  # what lm-eval calls it by; the context's tokens, the continuation's


class VLLMModel(TemplateLM):  # type: ignore[misc]  # lm-eval has no types
    """A model under evaluation. `engine` is called when there is something to ask."""

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
        self.max_length = positions - 2  # tokens that are predicted at most: one stands before them, one is drawn
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
        """Of each continuation: its log-probability, and whether each of its tokens is the likeliest."""
        found: list[tuple[float, bool]] = []
        for begin in range(0, len(requests), REQUESTS_A_CALL):
            self.progress(begin, len(requests))
            ask = partial(self._score, requests[begin : begin + REQUESTS_A_CALL])
            found += [(logprob, greedy) for logprob, greedy in self.answers(ask)]
        return found

    def _score(self, requests: Sequence[Scored]) -> list[tuple[float, bool]]:
        # a context that is too long loses its beginning
        windows = [[*context, *continuation][-(self.max_length + 1) :] for _, context, continuation in requests]
        found = []
        for (_, _, continuation), steps in zip(requests, scores(self.engine(), windows), strict=True):
            last = steps[-len(continuation) :] if continuation else []
            found.append((sum(logprob for logprob, _ in last), all(rank == 1 for _, rank in last)))
        return found

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
        found = [logprob for logprob, _ in self._loglikelihood_tokens(windows)]
        return [sum(found[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        texts: list[str] = []
        calls = _calls([request.args for request in requests])
        for begin, (contexts, told) in calls:
            self.progress(begin, len(requests))
            texts += self.answers(partial(self._generate, contexts, told, self.seed + begin))
        return texts

    def _generate(self, contexts: Sequence[str], told: dict[str, Any], seed: int) -> list[str]:
        asked: dict[str, Any] = dict(normalize_gen_kwargs(told, NEW_TOKENS))
        stop = handle_stop_sequences(asked.pop("until", None), eos=self.tokenizer.decode(self.end_of_text))
        new_tokens, _ = int(asked.pop("max_gen_toks")), asked.pop("do_sample", None)
        room = self.max_length - new_tokens
        if room <= 0:
            raise StageError(
                f"evaluate: an lm-eval task asks for {new_tokens} new tokens, and the model has {self.max_length} "
                "positions for prompt and completion: give `max_gen_toks` in the task's generation_kwargs"
            )
        how: dict[str, Any] = {"skip_special_tokens": True, "stop": [each for each in stop if each]} | asked
        completions = sample(
            self.engine(),
            [self.tok_encode(context)[-room:] for context in contexts],
            max_tokens=new_tokens,
            seed=seed,
            **how,
        )
        # decoded whole: vLLM's own text leaves out a character that is not complete yet
        texts = [self.tokenizer.decode(each.token_ids, skip_special_tokens=True) for each in completions]
        return [str(postprocess_generated_text(text, stop, None)) for text in texts]


def _calls(requests: Sequence[tuple[str, dict[str, Any]]]) -> list[tuple[int, tuple[list[str], dict[str, Any]]]]:
    """Neighbours that are asked the same way, in calls of a bounded size: (number of the first, contexts, how)."""
    calls: list[tuple[int, tuple[list[str], dict[str, Any]]]] = []
    for number, (context, told) in enumerate(requests):
        contexts, last = calls[-1][1] if calls else ([], None)
        if told == last and len(contexts) < REQUESTS_A_CALL:
            contexts.append(context)
        else:
            calls.append((number, ([context], told)))
    return calls
