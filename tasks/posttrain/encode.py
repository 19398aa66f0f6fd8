"""Tokenize rows.

    encoder = Encoder(tokenizer)
    encoder.prompt(row)                  the prompt's token ids
    encoder.completion(row, "chosen")    (prompt, completion up to the end-of-turn or end-of-text token)
    encoder.learned(row, "assistant")    (token ids, labels): -100 where there is no loss
    encoder.chat                         the chat template, once a row has needed it; None before

TRL tokenizes prompt and completion as one text, in which tokens may merge across the boundary: the model would be tuned
on prompts that never occur at inference. Here a text prompt and its completion are tokenized separately, as at
inference. Messages go through the chat template, as in TRL, with the columns `tools` and `chat_template_kwargs`.
"""

import json
from collections.abc import Sequence
from typing import Any, Literal

from jinja2 import TemplateError

from tasks.job import StageError
from tasks.posttrain.chat import Chat, chat_of
from tasks.rows.stored import Row, common_prefix, is_conversational

Loss = Literal["assistant", "completion", "all"]
IGNORED = -100  # PyTorch's label of a token without loss

NARROWEST: dict[str, tuple[Loss, ...]] = {  # by kind of row: the losses it allows, narrowest first
    "messages": ("assistant", "all"),
    "prompt_completion": ("completion", "all"),
    "text": ("all",),
}


def loss_of(loss: Loss | None, kind: str) -> Loss:
    """`loss`, or the narrowest loss that the rows allow. Raises StageError."""
    allowed = NARROWEST[kind]
    if loss is not None and loss not in allowed:
        raise StageError(f"loss: {loss}: rows of kind {kind} allow {' or '.join(allowed)}")
    return loss or allowed[0]


def prompted(row: Row) -> Row:
    """Convert messages to a prompt and a completion, which is the last turn."""
    if "prompt" in row:
        return row
    *before, last = row["messages"]
    others = {name: value for name, value in row.items() if name != "messages"}
    return {"prompt": before, "completion": [last], **others}


class Encoder:
    """Tokenizes rows with one tokenizer, whose chat template it may set (chat.py)."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.chat: Chat | None = None

    def prompt(self, row: Row) -> list[int]:
        if isinstance(row["prompt"], list):
            return self._render(row, row["prompt"], add_generation_prompt=True)
        return list(self.tokenizer(row["prompt"])["input_ids"])

    def messages(self, messages: list[Row], generates: bool = False) -> list[int]:
        """A conversation; `generates`: up to where the model's next turn begins."""
        return self._render({"messages": messages}, messages, add_generation_prompt=generates)

    def completion(self, row: Row, column: str = "completion") -> tuple[list[int], list[int]]:
        """(prompt, completion) in token ids, the completion from `column`."""
        prompt = self.prompt(row)
        if not is_conversational(row):
            return prompt, self.ended(row[column])
        whole = self._render(row, _messages(row["prompt"], "user") + _messages(row[column], "assistant"))
        # as in TRL: some templates render a prompt differently when it stands alone
        start = common_prefix(prompt, whole)
        return whole[:start], self._to_the_end_of_turn(whole[start:])

    def learned(self, row: Row, loss: Loss) -> tuple[list[int], list[int]]:
        """(token ids, labels). Raises StageError if no token has a loss."""
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

    def decoded(self, ids: Sequence[int]) -> str:
        """Decode sampled tokens as TRL does for rewards: without special tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _assistant(self, row: Row) -> tuple[list[int], list[int]]:
        chat = self._template()
        if not chat.marked:
            raise StageError(f"loss: assistant is not possible.{self._why('assistant')}")
        rendered = self._rendered(row, row["messages"], return_assistant_tokens_mask=True)
        ids, masks = list(rendered["input_ids"]), rendered["assistant_masks"]
        if any(masks) and chat.end not in {token for token, mask in zip(ids, masks, strict=True) if mask}:
            raise StageError(
                f"the chat template {chat.shown!r} marks the assistant's turns without their end token, "
                f"{self.tokenizer.convert_ids_to_tokens(chat.end)}: the model would not learn to stop. Move it before "
                "{% endgeneration %} in the model's chat_template.jinja, or use loss: all."
            )
        return ids, [token if mask else IGNORED for token, mask in zip(ids, masks, strict=True)]

    def _why(self, loss: Loss) -> str:
        if loss != "assistant" or not self.chat:
            return ""
        state = "marks no assistant turn in it" if self.chat.marked else "has no {% generation %} marks"
        return (
            f" The chat template {self.chat.shown!r} {state}; put {{% generation %}} and {{% endgeneration %}} around "
            f"what the assistant writes, in the model's chat_template.jinja, or use loss: all."
        )

    def _render(self, row: Row, messages: list[Row], **options: bool) -> list[int]:
        return list(self._rendered(row, messages, **options)["input_ids"])

    def _rendered(self, row: Row, messages: list[Row], **options: bool) -> Any:
        self._template()
        kwargs = {"tools": row.get("tools"), **(row.get("chat_template_kwargs") or {})}
        try:
            return self.tokenizer.apply_chat_template(messages, **kwargs, **options, return_dict=True)
        except (TemplateError, TypeError) as error:
            raise StageError(
                f"the chat template {self._template().shown!r} rejects a row: {error}. Change the row, or the model's "
                f"chat_template.jinja. The row: {_cut(row)}"
            ) from error

    def ended(self, text: str, first: bool = False) -> list[int]:
        """Tokenize text and append the end-of-text token. `first`: it begins the sequence (BOS, if any)."""
        end = self.tokenizer.eos_token_id
        ids = list(self.tokenizer(text, add_special_tokens=first)["input_ids"])
        return ids if ids and ids[-1] == end else [*ids, end]

    def _to_the_end_of_turn(self, ids: list[int]) -> list[int]:
        """Cut what a template writes after the end of the last turn, where generation ends."""
        end = self._template().end
        after = next((back for back, token in enumerate(reversed(ids)) if token == end), None)
        return [*ids, end] if after is None else ids[: len(ids) - after]

    def _template(self) -> Chat:
        if self.chat is None:
            self.chat = chat_of(self.tokenizer)
        return self.chat


def _messages(value: str | list[Row], role: str) -> list[Row]:
    return [{"role": role, "content": value}] if isinstance(value, str) else value


def _cut(row: Row) -> str:
    text = json.dumps(row, ensure_ascii=False)
    return text if len(text) <= 200 else text[:199] + "…"
