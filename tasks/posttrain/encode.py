"""Rows as token ids.

    encoder = Encoder(tokenizer)
    encoder.prompt(row)                  what the model is asked with
    encoder.completion(row, "chosen")    (prompt, what it should answer, to the end-of-turn or end-of-text token)
    encoder.learned(row, "assistant")    (token ids, labels): -100 where there is no loss
    encoder.chat                         the chat template, once a row has needed it; None before

TRL tokenizes prompt and completion as one text, whose tokens may merge across the boundary: the model would then be
tuned on prompts that it never sees when it is asked. Here a text prompt and its completion are tokenized apart, as at
inference. Messages go through the chat template, as in TRL; so do the columns `tools` and `chat_template_kwargs`.
"""

import json
from collections.abc import Sequence
from typing import Any, Literal

from jinja2 import TemplateError

from tasks.job import StageError
from tasks.posttrain.chat import Chat, chat_of
from tasks.rows.stored import Row, is_conversational

Loss = Literal["assistant", "completion", "all"]
IGNORED = -100  # PyTorch's label for a token that has no loss

NARROWEST: dict[str, tuple[Loss, ...]] = {  # of each kind of row, the losses that it allows, the narrowest first
    "messages": ("assistant", "all"),
    "prompt_completion": ("completion", "all"),
    "text": ("all",),
}


def loss_of(asked: Loss | None, kind: str) -> Loss:
    """The loss that is asked for, or else the narrowest that the rows allow. Raises StageError."""
    allowed = NARROWEST[kind]
    if asked is not None and asked not in allowed:
        raise StageError(f"loss: {asked}: rows of kind {kind} allow {' or '.join(allowed)}")
    return asked or allowed[0]


def prompted(row: Row) -> Row:
    """A row with a prompt: of messages, the last turn is its completion."""
    if "prompt" in row:
        return row
    *before, last = row["messages"]
    others = {name: value for name, value in row.items() if name != "messages"}
    return {"prompt": before, "completion": [last], **others}


class Encoder:
    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.chat: Chat | None = None

    def prompt(self, row: Row) -> list[int]:
        if isinstance(row["prompt"], list):
            return self._render(row, row["prompt"], add_generation_prompt=True)
        return list(self.tokenizer(row["prompt"])["input_ids"])

    def completion(self, row: Row, column: str = "completion") -> tuple[list[int], list[int]]:
        """The prompt, and what is said after it in `column`."""
        prompt = self.prompt(row)
        if not is_conversational(row):
            return prompt, self.ended(row[column])
        whole = self._render(row, _messages(row["prompt"], "user") + _messages(row[column], "assistant"))
        pairs = enumerate(zip(prompt, whole, strict=False))  # as in TRL: some templates render a prompt alone otherwise
        start = next((at for at, (one, other) in pairs if one != other), min(len(prompt), len(whole)))
        return whole[:start], self._to_the_end_of_turn(whole[start:])

    def learned(self, row: Row, loss: Loss) -> tuple[list[int], list[int]]:
        """Raises StageError when there is no token to learn."""
        if "prompt" in row:
            prompt, completion = self.completion(row)
            ids = prompt + completion
            labels = ids if loss == "all" else [IGNORED] * len(prompt) + completion
        elif "messages" not in row:
            ids = labels = self.ended(row["text"], first=True)
        elif loss == "assistant":
            ids, labels = self._assistant(row)
        else:
            ids = labels = self._render(row, row["messages"])
        if all(label == IGNORED for label in labels):
            raise StageError(f"a row has no token to learn with loss: {loss}.{self._why(loss)} The row: {_cut(row)}")
        return ids, labels

    def said(self, ids: Sequence[int]) -> str:
        """Sampled tokens as text, as TRL hands it to rewards: without special tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _assistant(self, row: Row) -> tuple[list[int], list[int]]:
        chat = self._template()
        if not chat.marked:
            raise StageError(f"loss: assistant is not possible.{self._why('assistant')}")
        found = self._rendered(row, row["messages"], return_assistant_tokens_mask=True)
        ids, masks = list(found["input_ids"]), found["assistant_masks"]
        if any(masks) and chat.end not in {token for token, said in zip(ids, masks, strict=True) if said}:
            raise StageError(
                f"the chat template {chat.shown!r} marks the assistant's turns without their end, "
                f"{self.tokenizer.convert_ids_to_tokens(chat.end)}: the model would not learn to stop. Move it before "
                "{% endgeneration %} in the model's chat_template.jinja, or say loss: all."
            )
        return ids, [token if said else IGNORED for token, said in zip(ids, masks, strict=True)]

    def _why(self, loss: Loss) -> str:
        if loss != "assistant" or not self.chat:
            return ""
        state = "marks no turn of the assistant in it" if self.chat.marked else "has no {% generation %} marks"
        return (
            f" The chat template {self.chat.shown!r} {state}; put {{% generation %}} and {{% endgeneration %}} around "
            f"what the assistant writes, in the model's chat_template.jinja, or say loss: all."
        )

    def _render(self, row: Row, messages: list[Row], **how: bool) -> list[int]:
        return list(self._rendered(row, messages, **how)["input_ids"])

    def _rendered(self, row: Row, messages: list[Row], **how: bool) -> Any:
        self._template()
        options = {"tools": row.get("tools"), **(row.get("chat_template_kwargs") or {})}
        try:
            return self.tokenizer.apply_chat_template(messages, **options, **how, return_dict=True)
        except (TemplateError, TypeError) as error:
            raise StageError(
                f"the chat template {self._template().shown!r} refuses a row: {error}. Change the row, or the model's "
                f"chat_template.jinja. The row: {_cut(row)}"
            ) from error

    def ended(self, text: str, first: bool = False) -> list[int]:
        """Text with the end-of-text token; `first`: nothing stands before it."""
        end = self.tokenizer.eos_token_id
        ids = list(self.tokenizer(text, add_special_tokens=first)["input_ids"])
        return ids if ids and ids[-1] == end else [*ids, end]

    def _to_the_end_of_turn(self, ids: list[int]) -> list[int]:
        """Without what a template writes after the last turn's end: a model that is asked ends there."""
        end = self._template().end
        after = next((back for back, token in enumerate(reversed(ids)) if token == end), None)
        return [*ids, end] if after is None else ids[: len(ids) - after]

    def _template(self) -> Chat:
        if self.chat is None:
            self.chat = chat_of(self.tokenizer)
        return self.chat


def _messages(said: str | list[Row], role: str) -> list[Row]:
    return [{"role": role, "content": said}] if isinstance(said, str) else said


def _cut(row: Row) -> str:
    text = json.dumps(row, ensure_ascii=False)
    return text if len(text) <= 200 else text[:199] + "…"
