"""Parse the tool calls of a model's turn as TRL does."""

from collections.abc import Sequence
from typing import Any

from trl.chat_template_utils import add_response_schema, parse_response


def knows_responses(tokenizer: Any) -> bool:
    """Return whether the tokenizer has a response template. Sets TRL's, if it has one for the chat template."""
    if getattr(tokenizer, "response_template", None) is None and tokenizer.chat_template is not None:
        try:
            add_response_schema(tokenizer)
        except ValueError:  # an unknown template
            return False
    return getattr(tokenizer, "response_template", None) is not None


def parsed_response(tokenizer: Any, ids: Sequence[int], prefix: Sequence[int], tools: Sequence[Any]) -> dict[str, Any]:
    """Parse a turn into a message. Malformed calls stay text. `prefix`: the tokens before the turn; `tools`:
    schemas."""
    return dict(parse_response(tokenizer, list(ids), prefix=list(prefix), tools=list(tools)))
