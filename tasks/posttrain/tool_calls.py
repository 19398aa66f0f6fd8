"""Read the tool calls in sampled tokens, and encode the tools' answers.

    calls = ToolCalls(tokenizer, encoder, schemas)     before the encoder has been used
    message = calls.message(ids, prefix)               {"role": "assistant", "content", "tool_calls"}
    ids += calls.encoded(answers)                      up to where the model's next turn begins

A turn is parsed by the response template of the tokenizer or of TRL, for model families that have one, else in Hermes'
format, <tool_call>{"name": …, "arguments": …}</tool_call>. Sampled tokens are never tokenized again: as in TRL, the
answers' tokens are the difference between the renderings of a conversation with and without the answers.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from baton.tasks.core.job import StageError
from baton.tasks.environments.environments import Call, ToolResult
from baton.tasks.posttrain.chat import QUESTION, TOOL
from baton.tasks.posttrain.encode import RowEncoder
from baton.tasks.posttrain.trl_hooks.response import knows_responses, parsed_response
from baton.tasks.rows.stored import Row, common_prefix

_HERMES = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_CALL: Call = ("look", {"at": "it"})


class ToolCalls:
    """The format in which a model writes calls and gets answers."""

    def __init__(self, tokenizer: Any, encoder: RowEncoder, schemas: Sequence[dict[str, Any]]) -> None:
        """Check that a call that the chat template renders is read back. Raises StageError."""
        self.tokenizer, self.encoder, self.schemas = tokenizer, encoder, list(schemas)
        self._known = knows_responses(tokenizer)  # checked with the model's own template, which the encoder may replace
        self.end = self._end_of_calls()
        self._check()

    def message(self, ids: Sequence[int], prefix: Sequence[int]) -> Row:
        """Return the message of a sampled turn that follows `prefix`."""
        if self._known:
            return parsed_response(self.tokenizer, ids, prefix, self.schemas)
        text = str(self.tokenizer.decode(ids[:-1] if self.is_ended(ids) else ids))
        calls = [call for block in _HERMES.findall(text) if (call := _hermes(block))]
        if not calls:
            return {"role": "assistant", "content": text}
        return {"role": "assistant", "content": text.partition("<tool_call>")[0].strip(), "tool_calls": calls}

    def is_ended(self, ids: Sequence[int]) -> bool:
        """Return whether the turn has the end that the template gives to turns with calls."""
        return bool(ids) and ids[-1] == self.end

    def encoded(self, messages: Sequence[Row]) -> list[int]:
        """Return the tokens from the end of the model's turn with the calls to the beginning of its next turn.
        `messages` are those of `tool_messages`."""
        before = [QUESTION, _turn([(messages[0]["name"], {})])]
        prefix = self.encoder.messages(before)
        ended = len(prefix) - prefix[::-1].index(self.end)  # some templates write a line break after the end
        full = self.encoder.messages([*before, *messages], generates=True)
        if common_prefix(prefix[:ended], full) < ended:
            raise StageError(
                f"the chat template {self._shown!r} renders a call differently when an answer follows it; change the "
                "model's chat_template.jinja"
            )
        return full[ended:]

    def _end_of_calls(self) -> int:
        """Return the last special token of a turn with calls, which in most templates ends all turns."""
        special = set(self.tokenizer.get_added_vocab().values())
        rendered = self.encoder.messages([QUESTION, _turn([_CALL])])
        end = next((token for token in reversed(rendered) if token in special), None)
        if end is None:
            raise StageError(f"the chat template {self._shown!r} ends a turn with calls by no special token")
        return end

    @property
    def _shown(self) -> str:
        assert self.encoder.chat
        return self.encoder.chat.shown

    def _check(self) -> None:
        """Check that a call that the template renders is read back. Raises StageError."""
        schemas, self.schemas = self.schemas, [TOOL]
        row = {"prompt": [QUESTION], "completion": [_turn([_CALL])], "tools": [TOOL]}
        prompt, ids = self.encoder.completion(row)
        ids = ids[: ids.index(self.end) + 1] if self.end in ids else ids
        read = calls_of(self.message(ids, prompt))
        self.schemas = schemas
        if read != [_CALL]:
            raise StageError(
                f"the chat template {self._shown!r} writes tool calls in a form that is not read back: "
                f"{self.tokenizer.decode(ids)!r}. Set the tokenizer's response_template, or write calls as "
                '<tool_call>{"name": …, "arguments": …}</tool_call> in the model\'s chat_template.jinja'
            )
        self.encoded(tool_messages([_CALL], [ToolResult("it")]))


def calls_of(message: Row) -> list[Call]:
    """Return the calls in a model's message."""
    functions = [call.get("function", call) for call in message.get("tool_calls") or ()]
    return [(function["name"], function["arguments"]) for function in functions]


def tool_messages(calls: Sequence[Call], answers: Sequence[ToolResult]) -> list[Row]:
    """Return the messages that answer a turn."""
    pairs = zip(calls, answers, strict=True)
    return [{"role": "tool", "name": name, "content": answer.text} for (name, _), answer in pairs]


def _turn(calls: Sequence[Call]) -> Row:
    functions = [{"type": "function", "function": {"name": name, "arguments": given}} for name, given in calls]
    return {"role": "assistant", "content": "", "tool_calls": functions}


def _hermes(text: str) -> Row | None:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    return {"type": "function", "function": {"name": call["name"], "arguments": call.get("arguments") or {}}}
