"""Tokenize rows in the same way for training, evaluation and rollouts.

    encoder = RowEncoder(tokenizer)
    encoder.prompt(row)                  the prompt's token ids
    encoder.completion(row, "chosen")    (prompt, completion up to the end-of-turn or end-of-text token)
    encoder.learned(row, "assistant")    (token ids, labels): -100 where there is no loss
    encoder.ahead(rows)                  the same rows, faster: texts are tokenized before their turn, on all cores
    encoder.chat                         the chat template, or None before a row has needed it

As in Transformers, TRL and vLLM, special tokens in a row's text are recognized. A text begins with the tokens that the
tokenizer puts before every text (BOS, if it adds one), once; the template determines how a conversation begins.

TRL tokenizes prompt and completion as one text, in which tokens may merge across the boundary: the model would be tuned
on prompts that never occur at inference. Here a text prompt and its completion are tokenized separately, as at
inference, the completion without the space that some tokenizers put before every text. Messages go through the chat
template, as in TRL, with the columns `tools` and `chat_template_kwargs`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import dropwhile, groupby, takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from jinja2 import TemplateError
from tokenizers import Encoding

from baton.infra.text import clause
from baton.tasks.core.job import StageError
from baton.tasks.models.tokenizers import UNKNOWN, beginning, begun
from baton.tasks.models.turns import add_ends
from baton.tasks.posttrain.chat import (
    TOOL,
    Chat,
    Opening,
    chat_of,
    marked_tokens,
    rendered_with_marks,
    shown,
    template_of,
)
from baton.tasks.posttrain.unprinted import Unprinted, conversations
from baton.tasks.rewards.thinking import markers
from baton.tasks.rows.marks import refusal
from baton.tasks.rows.stored import ANSWERS, TRAIN, Row, common_prefix, is_conversational, without_marks

Loss = Literal["assistant", "completion", "all"]
IGNORED = -100  # PyTorch's label for a token without loss
ENDING = 32  # last tokens of a prompt, in which a thought may begin
AHEAD = 1_000_000  # characters that are tokenized together; as tokens they use 32 MB

NARROWEST: dict[str, tuple[Loss, ...]] = {  # the losses that each kind of row allows, narrowest first
    "messages": ("assistant", "all"),
    "prompt_completion": ("completion", "all"),
    "text": ("all",),
}


def loss_of(loss: Loss | None, kind: str) -> Loss:
    """Return `loss`, or the narrowest loss that the rows allow. Raises StageError if they don't allow `loss`."""
    allowed = NARROWEST[kind]
    if loss is not None and loss not in allowed:
        raise StageError(f"loss: {loss}: rows of kind {kind} allow {' or '.join(allowed)}")
    return loss or allowed[0]


class RowRefused(StageError):
    """Raised for a row that cannot be used with the model's chat template, while other rows can."""


def prompted(row: Row) -> Row:
    """Convert messages to a prompt and a completion, which is the last turn. Raises RowRefused."""
    if "prompt" in row:
        return row
    *before, last = row["messages"]
    if not last.get(TRAIN, True):
        raise RowRefused(f"the last turn of a row is not to be learned, but it is the completion. The row: {cut(row)}")
    others = {name: value for name, value in row.items() if name != "messages"}
    return {"prompt": before, "completion": [last], **others}


class RowEncoder:
    """Tokenizes rows with one tokenizer, whose chat template it may set (chat.py)."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.begin = beginning(tokenizer.backend_tokenizer)  # read before a call may enable padding
        self.chats: dict[bool, Chat] = {}  # key: whether there are tools
        self.unlike = 0  # conversations that the template with marks renders differently
        self.other_prompts = 0  # prompts that the template renders differently before their completion
        self.unprinted = Unprinted()
        self._checked: set[bool] = set()  # checked chats; key as in `chats`
        self._tokenized: dict[str, Encoding] = {}  # texts of the next rows, tokenized ahead
        one, other, both = (self._tokens(text).ids for text in ("\n", "(", "\n("))
        self._adds_space = both != one + other  # a space before every text, as Llama 2's tokenizer does

    @property
    def chat(self) -> Chat | None:
        return next(iter(self.chats.values()), None)

    @property
    def template(self) -> str:
        """The chat template of conversations without tools."""
        return chat_of(self.tokenizer).template

    @property
    def ends(self) -> list[int]:
        """The tokens that end generation: those that end a turn, or the end-of-text token as long as there is no
        chat."""
        ends = (end for chat in self.chats.values() for end in (chat.end, chat.end_of_calls))
        return list(dict.fromkeys(ends)) or [self.tokenizer.eos_token_id]

    def ahead(self, rows: Iterable[Row], marked: bool = True) -> Iterator[Row]:
        """Yield the rows after tokenizing their texts in batches: the tokenizers library uses all cores for a batch,
        but one core for a single text. A batch has at most as much text as all batches before it, so that a run that
        needs few rows does not wait for many. `marked`: whether conversations will be rendered by the template with
        marks, if there is one."""
        batch: list[Row] = []
        texts: list[str] = []
        done = amount = 0  # characters
        try:
            for row in rows:
                batch.append(row)
                texts += (found := self._texts(row, marked))
                amount += sum(map(len, found))
                if not found or amount >= min(done, AHEAD):
                    yield from self._tokenize(batch, texts)
                    batch, texts, done, amount = [], [], done + amount, 0
            yield from self._tokenize(batch, texts)
        finally:  # also if the caller needs no more rows
            self._tokenized = {}

    def prompt(self, row: Row) -> list[int]:
        self.unprinted.look(row)
        if isinstance(row["prompt"], list):
            return self._render(row, row["prompt"], add_generation_prompt=True)
        return begun(self.begin, self._tokens(row["prompt"]).ids)

    def messages(self, messages: list[Row], generates: bool = False) -> list[int]:
        """Return the tokens of a conversation about a tool, with `generates` up to where the model's next turn begins.
        Uses the template with marks, if there is one: some templates render a turn differently when others follow it,
        but TRL's templates with marks do not."""
        row = {"messages": messages, "tools": [TOOL]}
        chat = self._chat_of(row)
        return self._render(row, messages, chat.marked or chat.template, add_generation_prompt=generates)

    def completion(self, row: Row, column: str = "completion") -> tuple[list[int], list[int]]:
        """Return (prompt, completion) in token ids, with the completion from `column`."""
        prompt = self.prompt(row)
        if not is_conversational(row):
            return prompt, self.ended(row[column])
        answer = _messages(row[column], "assistant")
        text = self._rendered(row, _messages(row["prompt"], "user") + answer)
        self.unprinted.look_for(_answers(answer), text)
        full = self._tokens(text).ids
        # As in TRL, since some templates render a prompt differently when it stands alone
        start = common_prefix(prompt, full)
        self.other_prompts += start < len(prompt) and column != "rejected"
        return full[:start], self._cut_at_end_of_turn(row, answer[-1], full[start:])

    def preference(self, row: Row) -> tuple[tuple[list[int], list[int]], tuple[list[int], list[int]]]:
        """Return `completion` for `chosen` and `rejected`. Raises RowRefused if they are the same tokens."""
        chosen, rejected = self.completion(row, "chosen"), self.completion(row, "rejected")
        if chosen == rejected:
            raise RowRefused(
                f"chosen and rejected are the same tokens: they differ only in text that the chat template leaves out, "
                f"such as spaces at the ends. The row: {cut(row)}"
            )
        return chosen, rejected

    def learned(self, row: Row, loss: Loss) -> tuple[list[int], list[int]]:
        """Return (token ids, labels). Raises StageError if no token has a loss."""
        kind = "prompt_completion" if "prompt" in row else "messages" if "messages" in row else "text"
        if kind != "text" and (why := refusal(row, kind)):
            raise RowRefused(f"{why}. The row: {cut(row)}")
        if kind == "prompt_completion":
            prompt, completion = self.completion(row)
            ids = prompt + completion
            labels = ids if loss == "all" else [IGNORED] * len(prompt) + completion
        elif kind == "text":
            ids = labels = begun(self.begin, self._with_end(self._tokens(row["text"]).ids))
        elif loss == "assistant":
            ids, labels = self._assistant(row)
        else:
            if not all(message.get(TRAIN, True) for message in row["messages"]):
                raise StageError(
                    f"loss: all learns turns that are not to be learned; use assistant. The row: {cut(row)}"
                )
            self.unprinted.look(row)
            text = self._rendered(row, row["messages"])
            self.unprinted.look_for(_answers(row["messages"]), text)
            ids = labels = self._with_end_of_turn(row, list(self._tokens(text).ids))
        if all(label == IGNORED for label in labels):
            raise RowRefused(
                f"a row has no token to learn with loss: {loss}.{self._why(row, loss)} The row: {cut(row)}"
            )
        return ids, labels

    def rendered(self, messages: list[Row], generates: bool) -> str:
        """Return the text of a conversation, up to where the model's next turn begins, or up to a point within its last
        turn. Raises StageError."""
        row = {"messages": messages}
        return self._rendered(row, messages, add_generation_prompt=generates, continue_final_message=not generates)

    def decoded(self, ids: Sequence[int], think_end: str | None = None) -> str:
        """Decode sampled tokens as TRL does for rewards, without special tokens, except those that begin or end a
        thought (tasks/rewards/thinking.py; `think_end` is a further one), which separate the thought from the
        answer."""
        texts = [*markers(think_end)]
        kept = {token for token in {*ids} & self._special.keys() if _is_part(self._special[token], texts)}
        parts = groupby(ids, key=lambda token: token in kept)
        return "".join(str(self.tokenizer.decode(list(part), skip_special_tokens=not keep)) for keep, part in parts)

    @cached_property
    def _special(self) -> dict[int, str]:
        """Special tokens by id."""
        return {id: token.content for id, token in self.tokenizer.added_tokens_decoder.items() if token.special}

    def ending(self, prompt: Sequence[int]) -> str:
        """Return the end of a prompt as text with special tokens, since it may begin a thought."""
        return str(self.tokenizer.decode(prompt[-ENDING:], skip_special_tokens=False))

    def ended(self, text: str) -> list[int]:
        """Return the tokens of a completion with the end-of-text token."""
        return self._with_end(self._continued(text))

    def write(self, directory: Path) -> None:
        """Write the files that a model tuned on these rows needs beside its weights: the chat template, and the tokens
        that end generation."""
        for chat in self.chats.values():
            chat.write(directory)
        add_ends(directory, self.ends)

    def notices(self) -> list[str]:
        """Return notices about the rows so far, whose messages the template omits or renders in several ways."""
        notices = self.unprinted.notices(self._text)
        if self.other_prompts:
            notices.append(
                f"{self.other_prompts} prompts are learned as the chat template renders them before their answers, "
                "but it renders them differently when the model is asked"
            )
        if self.unlike:
            notices.append(
                f"{self.unlike} conversations are learned as TRL's template with marks renders them, which the "
                "model's own template renders differently: it omits parts of earlier turns, such as thoughts"
            )
        return notices

    def _assistant(self, row: Row) -> tuple[list[int], list[int]]:
        chat = self._chat_of(row)
        if chat.marked is None:
            self._rendered(row, row["messages"])  # an error in the template is reported instead
            raise StageError(f"loss: assistant is not possible.{self._why(row, 'assistant')}")
        self._check_marks(row)
        self.unprinted.look(row)
        text, spans = self._marked(row, row["messages"])
        self.unprinted.look_for((turn for turn in _answers(row["messages"]) if turn.get(TRAIN, True)), text)
        tokens = self._tokens(text)
        ids, masks = tokens.ids, marked_tokens(tokens, spans)
        if chat.marked != chat.template and text != self._rendered(row, row["messages"]):
            self.unlike += 1
        # Only the last turn counts, since a template may mark the end of earlier turns alone
        backwards = dropwhile(lambda token: not token[1], reversed([*zip(ids, masks, strict=True)]))
        last = dict(takewhile(itemgetter(1), backwards))
        end = chat.end_of(next((turn for turn in reversed(row["messages"]) if turn["role"] == "assistant"), {}))
        if any(masks) and end not in last:
            raise StageError(
                f"the chat template {chat.shown!r} marks the assistant's turns without their end token, "
                f"{self.tokenizer.convert_ids_to_tokens(end)}: the model would not learn to stop. Move it before "
                "{% endgeneration %} in the model's chat_template.jinja, or use loss: all."
            )
        if (learned := self._learned_spans(row, text, spans)) != spans:
            masks = marked_tokens(tokens, learned)
        return ids, [token if mask else IGNORED for token, mask in zip(ids, masks, strict=True)]

    def _check_marks(self, row: Row) -> None:
        """Raise StageError if the template marks anything before the assistant's first turn. Only the first
        conversation of a template is checked."""
        if (tools := bool(row.get("tools"))) in self._checked:
            return
        before = list(takewhile(lambda message: message["role"] != "assistant", row["messages"]))
        if before and self._marked(row, before)[1]:
            raise StageError(
                f"the chat template {self._chat_of(row).shown!r} marks the user's turns too, which would be learned. "
                "Move {% generation %} and {% endgeneration %} around what the assistant writes, in the model's "
                "chat_template.jinja, or use loss: all."
            )
        self._checked.add(tools)

    def _learned_spans(self, row: Row, text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the ranges that the template marks, without those of turns that are not to be learned. A template may
        mark several parts of a turn, or none: a turn's ranges are those that follow the ranges of the turns before
        it."""
        turns = [(at, turn.get(TRAIN, True)) for at, turn in enumerate(row["messages"]) if turn["role"] == "assistant"]
        if all(learned for _, learned in turns):
            return spans
        parts, firsts = [text[begin:end] for begin, end in spans], []
        for at, _ in turns:
            shorter, marked = self._marked(row, row["messages"][:at])
            if [shorter[begin:end] for begin, end in marked] != parts[: len(marked)]:
                raise RowRefused(
                    f"the chat template {self._chat_of(row).shown!r} marks other parts of earlier turns when later "
                    f"ones follow: a turn cannot be left out of the loss. Change the marks in the model's "
                    f"chat_template.jinja, or leave out the row. The row: {cut(row)}"
                )
            firsts.append(len(marked))
        by_turn = zip(turns, firsts, [*firsts[1:], len(spans)], strict=True)
        return [span for (_, learned), begin, end in by_turn if learned for span in spans[begin:end]]

    def _marked(self, row: Row, messages: list[Row]) -> tuple[str, list[tuple[int, int]]]:
        """Return a conversation's text, and the ranges that its template marks."""
        marked = self._chat_of(row).marked
        assert marked is not None

        def found(messages: list[Row]) -> tuple[str, list[tuple[int, int]]]:
            options = self._options(row, messages)
            return rendered_with_marks(self.tokenizer, marked, options.pop("conversation"), **options)

        with self._refusing(row):
            text, spans = found(messages)
            _refuse_printed_null(messages, text, lambda others: found(others)[0])
        return text, spans

    def _why(self, row: Row, loss: Loss) -> str:
        if loss != "assistant":
            return ""
        chat = self._chat_of(row)
        state = "marks no token of a turn that is to be learned" if chat.marked else "has no {% generation %} marks"
        return (
            f" The chat template {chat.shown!r} {state}; put {{% generation %}} and {{% endgeneration %}} around "
            f"what the assistant writes, in the model's chat_template.jinja, or use loss: all."
        )

    def check(self, row: Row) -> None:
        """Raise RowRefused if the chat template rejects a row."""
        for conversation in conversations(row):
            self._text(row, conversation)
        if conversations(row) and isinstance(row.get("prompt"), list):
            self._rendered(row, row["prompt"], add_generation_prompt=True)

    def _text(self, row: Row, messages: list[Row]) -> str:
        """Return the text of a conversation as it is learned."""
        chat = self._chat_of(row)
        return self._rendered(row, messages, chat.marked if chat.marked and "prompt" not in row else chat.template)

    def _render(self, row: Row, messages: list[Row], template: str | None = None, **options: bool) -> list[int]:
        return list(self._tokens(self._rendered(row, messages, template, **options)).ids)

    def _rendered(self, row: Row, messages: list[Row], template: str | None = None, **options: bool) -> str:
        template = template or self._chat_of(row).template

        def text(messages: list[Row]) -> str:
            return str(
                self.tokenizer.apply_chat_template(
                    chat_template=template, tokenize=False, **self._options(row, messages), **options
                )
            )

        with self._refusing(row):
            _refuse_printed_null(messages, rendered := text(messages), text)
        return rendered

    def _options(self, row: Row, messages: list[Row]) -> dict[str, Any]:
        """Return the template's arguments from a row."""
        kwargs = row.get("chat_template_kwargs") or {}
        return {"conversation": without_marks(messages), "tools": row.get("tools") or None, **kwargs}

    @contextmanager
    def _refusing(self, row: Row) -> Iterator[None]:
        """Turn an error of the chat template into RowRefused."""
        try:
            yield
        except Exception as error:  # a template is a program: any exception can occur
            reason = error if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
            template = template_of(self.tokenizer, bool(row.get("tools"))) or ""
            raise RowRefused(
                f"the chat template {shown(template)!r} rejects a row: {clause(reason)}. Change the row, or the "
                f"model's chat_template.jinja. The row: {cut(row)}"
            ) from error

    def _with_end(self, ids: list[int]) -> list[int]:
        end = self.tokenizer.eos_token_id
        return ids if ids and ids[-1] == end else [*ids, end]

    def _with_end_of_turn(self, row: Row, ids: list[int]) -> list[int]:
        """Append the token that ends generation to a conversation, if the template does not write it: without it, the
        model would not learn to stop."""
        return ids if self._chat_of(row).prints_end else self._with_end(ids)

    def _continued(self, text: str) -> list[int]:
        """Return the tokens of a text that continues another."""
        ids = self._tokens(behind := self._behind(text)).ids
        if not self._adds_space:
            return list(ids)
        before = self._tokens(behind[0]).ids
        return list(ids[len(before) :] if ids[: len(before)] == before else self._tokens(text).ids)

    def _behind(self, text: str) -> str:
        """Put a character before the text that shares no token with it, if the tokenizer puts a space before a text."""
        return (UNKNOWN if text[:1].isspace() else "\n") + text if self._adds_space else text

    def _tokens(self, text: str) -> Encoding:
        """Return the tokens of a prompt, a completion or a rendered chat, the same as those of
        `baton.tasks.models.tokenizers.parsed`."""
        return self._tokenized.get(text) or self._encoded([text])[0]

    def _encoded(self, texts: list[str]) -> Sequence[Encoding]:
        only = {"return_attention_mask": False, "return_token_type_ids": False}  # Transformers makes lists of each
        return self.tokenizer(texts, add_special_tokens=False, **only).encodings  # type: ignore[no-any-return]

    def _tokenize(self, rows: list[Row], texts: list[str]) -> list[Row]:
        """Tokenize the texts of rows, and return the rows."""
        unique = list(dict.fromkeys(texts))
        self._tokenized = dict(zip(unique, self._encoded(unique), strict=True)) if unique else {}
        return rows

    def _texts(self, row: Row, marked: bool) -> list[str]:
        """Return the texts of a row to tokenize ahead. Those of conversations are omitted if the template rejects the
        row, or is not known yet: a row that is not used must not decide on the chat."""
        names = ("prompt", *ANSWERS) if "prompt" in row else ("text",)
        texts = [
            self._behind(row[name]) if name in ANSWERS else row[name]
            for name in names
            if isinstance(row.get(name), str)
        ]
        if (turns := conversations(row)) and bool(row.get("tools")) in self.chats:
            with suppress(RowRefused):
                if "prompt" in row:
                    texts.append(self._rendered(row, row["prompt"], add_generation_prompt=True))
                template = self._chat_of(row).marked if marked and "prompt" not in row else None
                texts += [self._rendered(row, conversation, template) for conversation in turns]
        return texts

    def _chat_of(self, row: Row) -> Chat:
        """Return the chat of a row. Raises RowRefused if its template rejects the row and all probes."""
        if (tools := bool(row.get("tools"))) not in self.chats:
            options = self._options(row, _before_an_answer(row))
            with self._refusing(row):
                self.chats[tools] = chat_of(self.tokenizer, tools, Opening(options.pop("conversation"), options))
        return self.chats[tools]

    def _cut_at_end_of_turn(self, row: Row, turn: Row, ids: list[int]) -> list[int]:
        """Cut the tokens that a template writes after the end of the last turn, where generation ends."""
        end = self._chat_of(row).end_of(turn)
        after = next((back for back, token in enumerate(reversed(ids)) if token == end), None)
        return [*ids, end] if after is None else ids[: len(ids) - after]


def _refuse_printed_null(messages: list[Row], text: str, render: Callable[[list[Row]], str]) -> None:
    """Raise TemplateError if a conversation's text has the word None for a field that is null, since the word would be
    learned. `render` returns a conversation's text."""
    nulls = sorted({name for message in messages for name, value in message.items() if value is None})
    if not nulls or "None" not in text:
        return
    without = [{name: value for name, value in message.items() if value is not None} for message in messages]
    others = [{"content": ""} | message if "content" in nulls else message for message in without]
    with suppress(Exception):  # a template is a program: any exception can occur
        if text.count("None") <= render(others).count("None"):
            return
    raise TemplateError(f'it prints the word "None" for {" or ".join(nulls)}: null; write "" or leave the field out')


def _messages(value: str | list[Row], role: str) -> list[Row]:
    return [{"role": role, "content": value}] if isinstance(value, str) else value


def _before_an_answer(row: Row) -> list[Row]:
    """Return a row's messages up to the assistant's first turn."""
    if "prompt" in row:
        return _messages(row["prompt"], "user")
    return [*takewhile(lambda message: message["role"] != "assistant", row["messages"])]


def _is_part(token: str, texts: Sequence[str]) -> bool:
    return any(token in text for text in texts)


def _answers(messages: list[Row]) -> list[Row]:
    return [message for message in messages if message["role"] == "assistant"]


def cut(row: Row) -> str:
    """Return a row as text for an error, shortened."""
    text = json.dumps(row, ensure_ascii=False)
    return text if len(text) <= 200 else text[:199] + "…"
