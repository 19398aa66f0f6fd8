"""A conversation with a model, through OpenAI's API."""

from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx
import openai

from baton.tasks.core.job import StageError
from baton.tasks.serve.explained import NO_CHAT, NO_TEMPLATE

NO_KEY = "none"  # the client refuses to be without a key


@dataclass(frozen=True)
class Sampling:
    """How answers are sampled; None: as the model's server does by default."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None

    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass
class Conversation:
    """The turns of one conversation. With `completes`, each prompt is a text of its own, which the model continues."""

    client: openai.AsyncOpenAI
    model: str  # its name in requests
    title: str
    digest: str  # of the model that answered last; empty if the server names none
    completes: bool = False
    turns: list[dict[str, str]] = field(default_factory=list)
    answer: str = ""  # the last one, as far as it has arrived
    is_cut: bool = False  # the last answer has as many tokens as are allowed

    async def ask(self, text: str, system: str, sampling: Sampling, show: Callable[[str], None]) -> None:
        """Ask for an answer and show its parts as they arrive. An answer that is stopped stays in the conversation as
        far as it has arrived. Raises StageError."""
        self.answer, self.is_cut = "", False
        asked = {"role": "user", "content": text}
        instructions = [{"role": "system", "content": system}] if system else []
        messages = [*instructions, *self.turns, asked]
        try:
            async for part in self._parts(text, sampling) if self.completes else self._chat(messages, sampling):
                self.answer += part
                show(part)
        except (openai.OpenAIError, httpx.HTTPError, ValueError) as error:  # ValueError: the stream is not JSON
            raise StageError(f"{self.title}: {message_of(error)}") from error
        finally:
            if self.answer and not self.completes:
                self.turns += [asked, {"role": "assistant", "content": self.answer}]

    async def _chat(self, messages: Any, sampling: Sampling) -> AsyncIterator[str]:
        arguments = sampling.arguments()
        async with await self.client.chat.completions.create(
            model=self.model, messages=messages, stream=True, **arguments
        ) as stream:
            async for chunk in stream:
                self._note(chunk)
                if chunk.choices:
                    yield chunk.choices[0].delta.content or ""

    async def _parts(self, prompt: str, sampling: Sampling) -> AsyncIterator[str]:
        arguments = {"max_tokens": None} | sampling.arguments()  # without this, the API's default is 16
        async with await self.client.completions.create(
            model=self.model, prompt=prompt, stream=True, **arguments
        ) as stream:
            async for chunk in stream:
                self._note(chunk)
                if chunk.choices:
                    yield chunk.choices[0].text or ""

    def _note(self, chunk: Any) -> None:
        """Note the model of a part and the reason for its end. Not every server sends them with every part."""
        self.digest = getattr(chunk, "model", None) or self.digest
        self.is_cut = self.is_cut or any(getattr(each, "finish_reason", None) == "length" for each in chunk.choices)


def message_of(error: Exception) -> str:
    """Return the message of an API's error, with a way out where one is known."""
    if isinstance(error, openai.APIConnectionError):
        return f"the server does not answer ({error.__cause__ or error})"
    body = error.body if isinstance(error, openai.APIError) else None
    message = str(body["message"]) if isinstance(body, dict) and body.get("message") else str(error)
    if isinstance(error, openai.AuthenticationError):
        message += " (OPENAI_API_KEY is the key that is sent)"
    return NO_CHAT if NO_TEMPLATE in message else message
