"""The held-out rows of a set as questions: each row's prompt in tokens, and its own completion where it has one.

    messages            all up to the last turn of the assistant, which is the reference
    prompt_completion   the prompt; the completion is the reference
    preference          the prompt (or the turns that both answers begin with); the chosen one is the reference
    prompt              the prompt; where a column has the answer (see tasks/rewards/gold.py), that is the reference
    text                refused: a text has no prompt

A prompt that is text is used as it is; messages go through the chat template, with its generation prompt.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.evaluate.spec import EvaluatorSpec
from tasks.evaluate.subject import Subject
from tasks.job import StageError
from tasks.manifest import text_digest
from tasks.rewards.gold import own_answer
from tasks.rows.stored import encoded, read_rows

Messages = list[dict[str, Any]]
Prompt = str | Messages  # TRL's two forms, of completions too


@dataclass(frozen=True)
class Question:
    id: str  # of the row: BLAKE3 of its line
    row: dict[str, Any]
    prompt: Prompt
    reference: Prompt | None
    tokens: list[int]

    @property
    def scored(self) -> dict[str, Any]:
        """The row as rewards see it: with its reference as its completion."""
        return self.row if self.reference is None else self.row | {"completion": self.reference}

    def answer(self, text: str) -> Prompt:
        """A completion in the prompt's form."""
        return text if isinstance(self.prompt, str) else [{"role": "assistant", "content": text}]


@dataclass(frozen=True)
class Questions:
    """The questions of an evaluator, and how many rows were left out."""

    questions: list[Question]
    too_long: int  # for the model's positions


def choose(name: str, rows: Path, spec: EvaluatorSpec, subject: Subject, seed: int) -> Questions:
    """Up to `spec.prompts` held-out rows, in an order by the rows' content and the seed: other rows may come and go.
    Raises StageError when no row can be used."""
    room = subject.positions - spec.max_new_tokens
    if room <= 0:
        raise StageError(
            f"evaluate.{name}.max_new_tokens: {spec.max_new_tokens}: the model has {subject.positions} positions for "
            "the prompt and the completion together; ask for fewer tokens"
        )
    found: list[Question] = []
    too_long = 0
    for id, row in _ordered(rows, seed):
        if len(found) == spec.prompts:
            break
        prompt, reference = question_of(name, row)
        tokens = subject.tokens_of(prompt, row.get("tools"), row.get("chat_template_kwargs"))
        if len(tokens) > room:
            too_long += 1
        else:
            found.append(Question(id, row, prompt, reference, tokens))
    if not found:
        why = f"all {too_long} held-out rows are too long for its {subject.positions} positions"
        raise StageError(
            f"evaluate.{name}.data: {spec.data}: the set has no held-out row that can be used: "
            + (why if too_long else "its held-out part is empty; hold out more of it (`held_out:`)")
        )
    return Questions(found, too_long)


def question_of(name: str, row: dict[str, Any]) -> tuple[Prompt, Prompt | None]:
    """A row's prompt and reference. Raises StageError for a row without a prompt."""
    if "messages" in row:
        turns: Messages = row["messages"]
        last = max((at for at, turn in enumerate(turns) if turn["role"] == "assistant"), default=len(turns))
        return turns[:last], turns[last : last + 1] or None
    if "chosen" in row and "prompt" not in row:
        return _common(row["chosen"], row["rejected"])
    if "prompt" in row:
        return row["prompt"], row.get("chosen", own_answer(row))
    raise StageError(
        f"evaluate.{name}.data: its rows have the columns {', '.join(sorted(row))} and no prompt: rows with rewards "
        "are `messages`, or have a `prompt`. Bits per byte is the measure of plain text"
    )


def _common(chosen: Prompt, rejected: Prompt) -> tuple[Prompt, Prompt]:
    """The beginning that both conversations share, and the rest of the chosen one."""
    same = 0
    for one, other in zip(chosen, rejected, strict=False):
        if one != other:
            break
        same += 1
    return chosen[:same], chosen[same:]


def _ordered(rows: Path, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    lines = [(text_digest(encoded(row)), row) for row in read_rows(rows, "held_out")]
    yield from sorted(lines, key=lambda each: (text_digest(f"{seed}\0{each[0]}"), each[0]))
