"""Convert messages, tools and calls to the names that chat templates use.

Null is kept: a template may test `content is none`, as for a turn that calls tools in OpenAI's format.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from baton.tasks.rows.check import DECODER, RowError, decoded
from baton.tasks.rows.marks import learned_turn
from baton.tasks.rows.stored import ANSWERS, TRAIN, Row

Note = Callable[[str], None]  # records a change made to a row

FIELDS = (
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "reasoning_content",
    "reasoning",
    "thinking",
    "tool_plan",
)
_CALLS = ("function_call", "tool_call")  # roles of ShareGPT's turns with tool calls
_ROLES = (
    {"human": "user"}
    | dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model"), "assistant")
    | dict.fromkeys(("observation", "function_response", "tool_response", "function"), "tool")
    | dict.fromkeys(_CALLS, "assistant")
)


def turn(role: str, content: Any) -> Row:
    return {"role": role, "content": content}


def converted(column: str, value: Any, note: Note) -> Any:
    """Convert a list of messages; other values are returned unchanged. Raises RowError."""
    if isinstance(value, dict) and column in ANSWERS:
        note(f"{column}: one message -> a list of it")
        value = [value]
    if not isinstance(value, list):
        return value
    return [_message(column, place, message, note) for place, message in enumerate(value)]


def tools(value: Any, note: Note) -> Any:
    """A list of tools in OpenAI's format, from tools, bare functions or JSON in text."""
    if isinstance(value, str):
        value = decoded(value)
        note("tools: JSON in text -> a list")
    if not isinstance(value, list):
        return value
    return [_wrapped(tool, "tools[]", note) for tool in value]


def filled_in(row: Row, columns: Sequence[str]) -> Iterator[str]:
    """The places where a row has nulls that Arrow fills in and that are rare otherwise: for the parameters of other
    rows' tools, and for arguments that the tool does not have. JSON files that were converted by Arrow have them.
    `columns`: the columns with messages."""
    declared: dict[str, set[str]] = {}
    for tool in row.get("tools") or ():
        function = tool.get("function", tool)
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        if isinstance(properties, dict):
            declared[function["name"]] = {name for name, schema in properties.items() if schema is not None}
            if len(declared[function["name"]]) < len(properties):
                yield "tools[].function.parameters.properties"
    messages = [each for column in columns for each in _list(row.get(column))]
    for call in (each for message in messages for each in message.get("tool_calls") or ()):
        function = call.get("function", call)
        known = declared.get(function["name"])
        nulls = {name for name, value in function.get("arguments", {}).items() if value is None}
        if known is not None and nulls - known:
            yield "tool_calls[].function.arguments"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _message(column: str, place: int, message: Any, note: Note) -> Any:
    if not isinstance(message, dict):
        return message
    message = {**message}
    for old, new in (("from", "role"), ("value", "content")):
        if old in message and message.get(new) is None:
            message[new] = message.pop(old)
            note(f"{column}[].{old} -> {new}")
    if message.get("function_call") is not None:
        raise RowError(f"{column}[{place}]: 'function_call' is not supported; use tool_calls, which replaced it")
    role = message.get("role")
    if isinstance(role, str) and (known := _ROLES.get(role.lower(), role.lower())) != role:
        if role.lower() in _CALLS:
            message |= {"content": "", "tool_calls": _calls(column, place, message.get("content"))}
        message["role"] = known
        note(f"{column}[].role: {role} -> {known}")
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list) and content and all(_is_text(block) for block in content):
        message["content"] = "".join(block["text"] for block in content)
        note(f"{column}[].content: blocks of text -> text")
    if isinstance(calls, list):
        message["tool_calls"] = [_call(_wrapped(call, "tool_calls[]", note), note) for call in calls]
    learned = _learned(column, place, message, note)
    for name in message.keys() - set(FIELDS):
        if message[name] is not None:
            note(f"dropped: {column}[].{name}")
    return {name: message[name] for name in FIELDS if name in message} | ({} if learned else {TRAIN: False})


def _learned(column: str, place: int, message: Row, note: Note) -> bool:
    learned = learned_turn(message, f"{column}[{place}]")
    if learned or message.get("role") != "assistant" or column == "prompt":
        return True  # as far as it would be learned
    if column in ANSWERS:
        raise RowError(f"{column}[{place}]: is not to be learned: leave the row out, or write it as messages")
    note(f"{column}[]: not to be learned -> no loss")
    return False


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type", "text") == "text" and isinstance(block.get("text"), str)


def _calls(column: str, place: int, content: Any) -> list[Any]:
    """The tool calls in the text of a turn in ShareGPT's format."""
    try:
        calls = DECODER.decode(content) if isinstance(content, str) else content
    except (ValueError, RecursionError) as error:
        raise RowError(
            f"{column}[{place}]: a function_call's value is JSON with name and arguments ({error})"
        ) from error
    return calls if isinstance(calls, list) else [calls]


def _wrapped(item: Any, place: str, note: Note) -> Any:
    """A tool or call in OpenAI's format, which has the function in `function`."""
    if not isinstance(item, dict) or "function" in item or not isinstance(item.get("name"), str):
        return item
    note(f"{place}: a function -> {{type, function}}")
    outer = {name: item[name] for name in ("id", "type") if name in item}
    function = {name: value for name, value in item.items() if name not in outer}
    return {"type": "function"} | outer | {"function": function}


def _call(call: Any, note: Note) -> Any:
    """Parse a call's arguments: text in OpenAI's format, an object for chat templates."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    note("tool_calls[].function.arguments: JSON in text -> an object")
    return call | {"function": function | {"arguments": decoded(function["arguments"])}}
