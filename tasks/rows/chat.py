"""Chat templates and tokens, without torch: what of a row the loss is on, what ends a turn, how long a row is.

    has_generation(template)        does it mark what the assistant says, with {% generation %}?
    training_template(tokenizer)    the tokenizer's template with these marks; None where no such one is known
    end_of_turn(tokenizer)          the id of the token that ends a turn: a model that is served must stop there
    encode(tokenizer, row)          a row's token ids, and where the loss is
    problems(tokenizer)             what a tokenizer lacks for a loss on the assistant's turns
    survey(tokenizer, rows, most)   tokens in all, the longest row, rows without any loss, rows with more than `most`

A template is known when it is one of those for which TRL has one with marks, or when it says of some conversations
what such a one says. Neither is changed: what is trained on reads as before. Every `tokenizer` here is one of
Transformers' fast ones.
"""

import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jinja2 import TemplateError

from tasks.job import StageError
from tasks.rows.stored import Row
from tasks.spec import Problem

Loss = Literal["assistant", "all"]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}"
    "{{ '\n' }}{% else %}{{ message['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_QUESTION = {"role": "user", "content": " What is it? "}
_ANSWER = {"role": "assistant", "content": " It is this. "}
_CALL = {"type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
_PROBES: list[list[Row]] = [
    [_QUESTION],
    [_QUESTION, _ANSWER],
    [{"role": "system", "content": " Be brief. "}, _QUESTION, _ANSWER, _QUESTION, _ANSWER],
    [_QUESTION, {"role": "assistant", "content": "", "tool_calls": [_CALL]}, {"role": "tool", "content": "?"}, _ANSWER],
]


@dataclass(frozen=True)
class Tokens:
    ids: list[int]
    loss: list[bool]  # whether it is on the token; nowhere in rows that have no answer of their own


@dataclass
class Survey:
    """What some rows are in tokens."""

    most: int
    rows: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    longest: int = 0
    too_long: int = 0  # rows with more than `most` tokens
    without_loss: int = 0  # rows to which the model would learn nothing
    first_without_loss: int = 0

    def problems(self) -> list[Problem]:
        found = []
        if self.without_loss:
            wanted = (
                f"rows of which the chat template marks some tokens as the assistant's; row {self.first_without_loss}"
            )
            found.append(Problem("", f"{self.without_loss} of {self.rows} rows", f"{wanted} has none"))
        if self.too_long:
            wanted = f"rows of at most {self.most} tokens; the longest has {self.longest}"
            found.append(Problem("", f"{self.too_long} of {self.rows} rows", wanted))
        return found


def has_generation(template: str) -> bool:
    return re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None


def training_template(tokenizer: Any) -> str | None:
    """The tokenizer's template, with marks around what the assistant says."""
    own = tokenizer.chat_template
    if own is None or has_generation(own):
        return own  # type: ignore[no-any-return]
    for plain, marked in trl_templates().values():
        if own == plain:
            return marked
    said = [_said(tokenizer, probe, own) for probe in _PROBES]
    for marked in (CHATML, *(marked for _, marked in trl_templates().values())):
        if said[1] and said == [_said(tokenizer, probe, marked) for probe in _PROBES]:
            return marked
    return None


@cache
def trl_templates() -> dict[str, tuple[str, str]]:
    """TRL's templates by their names, as models have them and with marks; none where TRL is not installed. They are
    read as files (of TRL 1.16), since TRL's own function imports torch."""
    spec = importlib.util.find_spec("trl")
    folder = Path(next(iter(spec.submodule_search_locations or []), "")) / "chat_templates" if spec else Path("none")
    names = sorted(path.name.removesuffix("_training.jinja") for path in folder.glob("*_training.jinja"))
    return {
        name: ((folder / f"{name}.jinja").read_text(), (folder / f"{name}_training.jinja").read_text())
        for name in names
    }


def end_of_turn(tokenizer: Any) -> int | None:
    """None where the template ends a turn of the assistant with ordinary text, or with nothing."""
    text = _said(tokenizer, [_QUESTION, {"role": "assistant", "content": "It is this."}], tokenizer.chat_template)
    ids = tokenizer((text or "").rpartition("It is this.")[2].lstrip(), add_special_tokens=False)["input_ids"]
    return int(ids[0]) if ids and ids[0] in tokenizer.get_added_vocab().values() else None


def encode(tokenizer: Any, row: Row, loss: Loss = "assistant", template: str | None = None) -> Tokens:
    """A row's tokens as TRL's trainers make them: of messages the loss is on the assistant's turns, or on all; of a
    prompt and its completion on that, and of text on all. Of a preference it is the longer answer. `template` is
    that of `training_template`, where it is known."""
    options = {
        "chat_template": template or training_template(tokenizer),
        "tools": row.get("tools"),
        **(row.get("chat_template_kwargs") or {}),
    }
    if "messages" in row and "prompt" not in row:
        marked = loss == "assistant"
        found = tokenizer.apply_chat_template(
            row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=marked, **options
        )
        ids = found["input_ids"]
        return Tokens(ids, [bool(each) for each in found["assistant_masks"]] if marked else [True] * len(ids))
    if "text" in row and "prompt" not in row:
        ids = tokenizer(_ended(row["text"], tokenizer))["input_ids"]
        return Tokens(ids, [True] * len(ids))
    prompt = _ids(tokenizer, row["prompt"], add_generation_prompt=True, **options)
    answers = [row[name] for name in ("completion", "chosen", "rejected") if name in row]
    if not answers:
        return Tokens(prompt, [False] * len(prompt))
    whole = max((_ids(tokenizer, row["prompt"] + _ended(answer, tokenizer), **options) for answer in answers), key=len)
    pairs = enumerate(zip(prompt, whole, strict=False))
    begins = next((at for at, (one, other) in pairs if one != other), min(len(prompt), len(whole)))
    return Tokens(whole, [at >= begins for at in range(len(whole))])


def problems(tokenizer: Any) -> list[Problem]:
    """What it lacks for conversations whose loss is on the assistant's turns."""
    own = tokenizer.chat_template
    if own is None:
        return [Problem("chat_template", None, "a tokenizer with a chat template; save one into its folder")]
    template = training_template(tokenizer)
    if template is None:
        wanted = "{% generation %} marks around what the assistant says, in the tokenizer's chat_template.jinja"
        return [Problem("chat_template", _short(own), f"{wanted}; this is none of those that are known without")]
    ends = end_of_turn(tokenizer)
    if ends is None:
        wanted = "a template that ends a turn with a token of its own, at which a model that is served stops"
        return [Problem("chat_template", _short(own), wanted)]
    tokens = encode(tokenizer, {"messages": [_QUESTION, _ANSWER, _QUESTION, _ANSWER]}, template=template)
    if ends not in {token for token, counts in zip(tokens.ids, tokens.loss, strict=True) if counts}:
        name = tokenizer.convert_ids_to_tokens(ends)
        return [
            Problem("chat_template", _short(own), f"the end of a turn, {name}, inside the marks: it is to be learnt")
        ]
    return []


def survey(tokenizer: Any, rows: Iterable[Row], most: int, loss: Loss = "assistant") -> Survey:
    """Raises StageError for a row that the template refuses."""
    found = Survey(most)
    template = training_template(tokenizer) or tokenizer.chat_template
    for row in rows:
        found.rows += 1
        try:
            tokens = encode(tokenizer, row, loss, template)
        except (TemplateError, TypeError, ValueError) as error:
            raise StageError(
                f"row {found.rows}: the tokenizer's chat template refuses it ({error}); change the row, or the template"
            ) from error
        found.tokens += len(tokens.ids)
        found.loss_tokens += sum(tokens.loss)
        found.longest = max(found.longest, len(tokens.ids))
        found.too_long += len(tokens.ids) > most
        if not any(tokens.loss) and ("prompt" not in row or "completion" in row):
            found.without_loss += 1
            found.first_without_loss = found.first_without_loss or found.rows
    return found


def _said(tokenizer: Any, messages: list[Row], template: str) -> str | None:
    """What a template makes of a conversation; None where it refuses it."""
    ask = messages[-1]["role"] == "user"
    try:
        said = tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=False, add_generation_prompt=ask
        )
    except (TemplateError, TypeError, ValueError):
        return None
    return str(said)


def _ids(tokenizer: Any, said: str | list[Row], **options: Any) -> list[int]:
    if isinstance(said, str):
        return list(tokenizer(said)["input_ids"])
    return list(tokenizer.apply_chat_template(said, tokenize=True, return_dict=True, **options)["input_ids"])


def _ended(answer: str | list[Row], tokenizer: Any) -> Any:
    """Text ends with the token for it, as a turn ends in a template."""
    done = not isinstance(answer, str) or answer.endswith(tokenizer.eos_token)
    return answer if done else answer + tokenizer.eos_token


def _short(template: str) -> str:
    return template if len(template) <= 60 else f"{template[:60]}…"
