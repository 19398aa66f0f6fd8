"""Smoke-test a server with OpenAI's client: it must serve the right model, and respond."""

import math
from dataclasses import dataclass

import openai

from baton.tasks.models.agreement import check_agreement, read_probe
from baton.tasks.models.tokenizers import plain
from baton.tasks.serve.server import Served, ServerFailed

TOKENS = 8
PROMPT = "def f(x):\n    return  é"
TIMEOUT_S = 120.0  # the first request of a large model compiles


@dataclass(frozen=True)
class Answers:
    """The model's responses; `chat` is None if it has no chat template."""

    completion: str
    chat: str | None
    max_model_len: int  # limit of prompt plus response, in tokens


def smoke_test(url: str, model: Served, key: str = "none") -> Answers:
    """Request a completion and a chat. Raises ServerFailed unless the server lists the model's digest and name, each
    response has the digest (also to a request without a model), the requested number of tokens, and finite
    log-probabilities, and the server tokenizes as the model's tokenizer.json does."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=TIMEOUT_S)
    try:
        listed = {listed_model.id: listed_model for listed_model in client.models.list()}
        known = {model.digest, model.name} <= listed.keys()
        _check(url, known, f"/v1/models lists {sorted(listed)}, not {model.digest}")
        completion = client.completions.create(
            model=model.digest,
            prompt=PROMPT,
            max_tokens=TOKENS,
            logprobs=1,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        _check_answer(url, model, completion.model, completion.usage)
        tokens = getattr(completion.choices[0], "prompt_token_ids", None)  # vLLM's, not OpenAI's
        of_file = plain(model.directory).encode(PROMPT).ids
        _check(url, tokens == of_file, f"the tokens of {PROMPT!r} are {tokens}, not {of_file} as by the model's file")
        logprobs = completion.choices[0].logprobs
        numbers = (logprobs.token_logprobs if logprobs else None) or []
        finite = len(numbers) == TOKENS and all(number is not None and math.isfinite(number) for number in numbers)
        _check(url, finite, f"the log-probabilities of a completion are {numbers}")
        unnamed = client.completions.create(model="", prompt=PROMPT, max_tokens=TOKENS, extra_body={"ignore_eos": True})
        _check_answer(url, model, unnamed.model, unnamed.usage)  # with an adapter the base could have answered
        if expected := read_probe(model.directory):
            check_agreement(expected, _scores(client, model, expected.ids), "vLLM's server")
        length = max(getattr(served, "max_model_len", None) or 0 for served in listed.values())  # vLLM's own field
        return Answers(completion.choices[0].text, _chat(client, url, model) if model.files.chats else None, length)
    except openai.OpenAIError as error:  # includes httpx's errors and error status codes
        raise ServerFailed(f"{url} fails its smoke test: {type(error).__name__}: {str(error)[:500]}") from error


def _scores(client: openai.OpenAI, model: Served, ids: list[int]) -> list[float]:
    """Return the log-probabilities of a text's tokens except the first, as far as the server's maximum length
    allows."""
    most = min((getattr(card, "max_model_len", None) or len(ids) + 1 for card in client.models.list()), default=1) - 1
    answer = client.completions.create(model=model.digest, prompt=ids[:most], echo=True, logprobs=1, max_tokens=1)
    logprobs = answer.choices[0].logprobs
    return [float(number) for number in ((logprobs.token_logprobs if logprobs else None) or [])[1:-1]]


def _chat(client: openai.OpenAI, url: str, model: Served) -> str:
    answer = client.chat.completions.create(
        model=model.name,
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=TOKENS,
        extra_body={"ignore_eos": True},
    )
    _check_answer(url, model, answer.model, answer.usage)
    return answer.choices[0].message.content or ""


def _check_answer(url: str, model: Served, digest: str, usage: object) -> None:
    _check(url, digest == model.digest, f"a response is from {digest}, not {model.digest}")
    tokens = getattr(usage, "completion_tokens", None)
    _check(url, tokens == TOKENS, f"a response has {tokens} tokens instead of {TOKENS}")


def _check(url: str, passed: bool, message: str) -> None:
    if not passed:
        raise ServerFailed(f"{url} fails its smoke test: {message}")
