"""A model for lm-eval that uses a vLLM engine for log-likelihoods, rolling log-likelihoods and generation.

lm-eval's own vLLM model requires the distribution "vllm", which the CPU build isn't, and starts its own engine. This
model shares the engine with the other evaluators, and agrees with lm-eval's `hf` model (tested, to 1e-3) for the same
`max_length`; vLLM needs one position for the token that it always generates.

Thoughts are removed as with lm-eval's `think_end_token`, and stop sequences apply to the text after a thought, since a
thought may contain them. A chat with a model that is known to think is sampled without stop sequences. Otherwise, a
text that has stopped within a thought is continued without them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from vllm import LLM

from baton.tasks.core.job import StageError
from baton.tasks.evaluate.generation import Generation, generation
from baton.tasks.evaluate.model_info import ModelInfo
from baton.tasks.models.tokenizers import begun, parsed
from baton.tasks.rewards.thinking import Thinking, ThinkingCounts
from baton.tasks.vllm.engine import sample, scores

REQUESTS_A_CALL = 256

Answers = Callable[[Callable[[], list[Any]]], list[Any]]  # calls its argument, or returns the saved answer
Scored = tuple[Any, list[int], list[int]]  # lm-eval's key, tokens of the context, tokens of the continuation


class VLLMModel(TemplateLM):  # type: ignore[misc]  # lm-eval has no types
    """The model under evaluation. `engine` is called at the first request without a saved answer; `chats`: lm-eval
    renders each prompt as a conversation (its apply_chat_template)."""

    def __init__(
        self,
        engine: Callable[[], LLM],
        info: ModelInfo,
        *,
        chats: bool = False,
        seed: int = 0,
        think_end: str | None = None,
        answers: Answers = lambda ask: ask(),
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        super().__init__()
        self.engine, self.info, self.encoder, self.chats, self.seed = engine, info, info.encoder, chats, seed
        self.tokenizer = info.encoder.tokenizer
        self.think_end = think_end
        self.thinking = Thinking.of(think_end, str(self.tokenizer.chat_template or ""))
        self.thoughts = ThinkingCounts(think_end or "")
        self.max_length = info.positions - 2  # one for context, one for the generated token
        self.answers, self.progress = answers, progress

    @property
    def eot_token_id(self) -> int:
        return self.info.end_of_text

    @property
    def prefix_token_id(self) -> int:
        begin = self.encoder.begin or [self.tokenizer.bos_token_id]
        return self.info.end_of_text if begin[-1] is None else int(begin[-1])

    @property
    def tokenizer_name(self) -> str:
        return "model"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        ids = parsed(self.tokenizer, string)
        return ids if self.chats or add_special_tokens is False else begun(self.encoder.begin, ids)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self.encoder.template if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self.encoder.rendered(chat_history, add_generation_prompt)

    def _loglikelihood_tokens(self, requests: Sequence[Scored], **kwargs: Any) -> list[tuple[float, bool]]:
        """Return (log-probability in nats, whether greedy decoding gives it) of each continuation. Raises StageError
        for an empty continuation, which would always be chosen, since its log-probability is the highest possible."""
        for key, _, continuation in requests:
            if not continuation:
                raise StageError(
                    f"an lm-eval task has an empty choice after the context that ends with {key[0][-80:]!r}: give each "
                    "choice of doc_to_choice a text"
                )
        scored: list[tuple[float, bool]] = []
        for begin in range(0, len(requests), REQUESTS_A_CALL):
            self.progress(begin, len(requests))
            ask = partial(self._score, requests[begin : begin + REQUESTS_A_CALL])
            scored += [(logprob, greedy) for logprob, greedy in self.answers(ask)]
        return scored

    def _score(self, requests: Sequence[Scored]) -> list[tuple[float, bool]]:
        windows = [self._window(request) for request in requests]
        scored = []
        for (_, _, continuation), steps in zip(requests, scores(self.engine(), windows), strict=True):
            last = steps[-len(continuation) :]
            scored.append((sum(logprob for logprob, _ in last), all(rank == 1 for _, rank in last)))
        return scored

    def _window(self, request: Scored) -> list[int]:
        """Return the tokens of a context and its continuation; a context that is too long is truncated on the left."""
        _, context, continuation = request
        return [*context, *continuation][-(self.max_length + 1) :]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        windows: list[Scored] = []
        ends: list[int] = []
        for (text,) in (request.args for request in requests):
            pairs = get_rolling_token_windows(
                token_list=self.info.tokens(text),  # a document
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
            sampled = self.answers(partial(self._generate, contexts, kwargs, self.seed + begin))
            stop = self._generation(kwargs).stop
            texts += [self._answer(*each, stop) for each in zip(contexts, sampled, strict=True)]
        return texts

    def _answer(self, context: str, text: str, stop: list[str]) -> str:
        """Return the part of a text that a task scores: after the thought, and before a stop sequence."""
        text = self.thinking.opened(context) + text
        answer = self.thinking.answer(text)
        self.thoughts.note(self.thinking, text)
        return str(postprocess_generated_text(answer if answer == text else answer.lstrip(), stop, None))

    def _generate(self, contexts: Sequence[str], gen_kwargs: dict[str, Any], seed: int) -> list[str]:
        """Return the sampled texts with their thoughts."""
        settings = self._generation(gen_kwargs)
        prompts = [self._prompt(context, settings) for context in contexts]
        thinks = self.thinking.expected and (self.chats or self.think_end is not None)
        stop = [] if thinks else settings.stop
        completions = sample(
            self.engine(), prompts, max_tokens=settings.new_tokens, seed=seed, stop=stop, **settings.options
        )
        # The texts are decoded here, since vLLM's text omits an incomplete character at the end
        texts = [self.encoder.decoded(one.token_ids, self.think_end) for one in completions]
        cut = [
            at
            for at, (context, one) in enumerate(zip(contexts, completions, strict=True))
            if stop
            and one.ended
            and len(one.token_ids) < settings.new_tokens
            and any(text in texts[at] for text in stop)
            and self.thinking.is_open(self.thinking.opened(context) + texts[at])
        ]
        if cut:
            begun = [[*prompts[at], *completions[at].token_ids] for at in cut]
            rooms = [settings.new_tokens - len(completions[at].token_ids) for at in cut]
            options = {name: value for name, value in settings.options.items() if name != "min_tokens"}
            rest = sample(self.engine(), begun, max_tokens=rooms, seed=seed, **options)
            for at, more in zip(cut, rest, strict=True):
                texts[at] = self.encoder.decoded([*completions[at].token_ids, *more.token_ids], self.think_end)
        return texts

    def _generation(self, gen_kwargs: dict[str, Any]) -> Generation:
        """Convert a task's options. Raises StageError."""
        settings = generation(gen_kwargs, self.tokenizer.decode(self.eot_token_id))
        if settings.new_tokens >= self.max_length:
            raise StageError(
                f"an lm-eval task generates {settings.new_tokens} tokens, but the model has {self.max_length} "
                "positions for prompt and completion: set a smaller `max_gen_toks` in the task's generation_kwargs"
            )
        return settings

    def _prompt(self, context: str, settings: Generation) -> list[int]:
        """Return the tokens of a prompt; one that leaves no room is truncated on the left."""
        return self.tok_encode(context)[-self._room(settings) :]

    def _room(self, settings: Generation) -> int:
        """Return the tokens that are left for the prompt."""
        return self.max_length - settings.new_tokens


class Lengths(VLLMModel):
    """Measures the requests before the engine is opened, to determine the length of its sequences."""

    longest = 0  # tokens of the longest sequence, with the generated tokens
    requests = 0
    truncated = 0  # number of truncated requests

    def measure(self, requests: Sequence[Instance]) -> None:
        """Measure requests. Raises StageError for a request that the model cannot answer."""
        by_type: dict[str, list[Instance]] = {}
        for request in requests:
            by_type.setdefault(request.request_type, []).append(request)
        for kind, some in by_type.items():
            getattr(self, kind)(some)

    def _score(self, requests: Sequence[Scored]) -> list[tuple[float, bool]]:
        for request in requests:
            self._note(sum(map(len, request[1:])), len(self._window(request)), 1)  # vLLM always generates a token
        return [(0.0, False)] * len(requests)

    def _generate(self, contexts: Sequence[str], gen_kwargs: dict[str, Any], seed: int) -> list[str]:
        settings = self._generation(gen_kwargs)
        for tokens in map(self.tok_encode, contexts):
            self._note(len(tokens), min(len(tokens), self._room(settings)), settings.new_tokens)
        return [""] * len(contexts)

    def _note(self, total: int, remaining: int, new: int) -> None:
        self.requests += 1
        self.truncated += remaining < total
        self.longest = max(self.longest, remaining + new)


def _calls(requests: Sequence[tuple[str, dict[str, Any]]]) -> list[tuple[int, tuple[list[str], dict[str, Any]]]]:
    """Batch consecutive requests with equal generation kwargs. Return (index of the first, (contexts, kwargs)) of each
    batch."""
    calls: list[tuple[int, tuple[list[str], dict[str, Any]]]] = []
    for number, (context, kwargs) in enumerate(requests):
        contexts, last = calls[-1][1] if calls else ([], None)
        if kwargs == last and len(contexts) < REQUESTS_A_CALL:
            contexts.append(context)
        else:
            calls.append((number, ([context], kwargs)))
    return calls
