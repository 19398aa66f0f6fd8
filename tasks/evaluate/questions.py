"""Convert held-out or training rows into questions, each a tokenized prompt with the reference completion, if the row
has one.

    messages            the messages before the last assistant turn that is to be learned; the turn is the reference,
                        unless the conversation's label is false
    prompt_completion   the prompt; the completion is the reference
    preference          the prompt (or the turns shared by both answers); the chosen answer is the reference
    prompt              the prompt; the reference is the answer column, if there is one (see tasks/rewards/gold.py)
    text                an error: a text has no prompt

They are tokenized as in post-training (tasks/posttrain/encode.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import text_digest
from baton.tasks.data.documents import Split
from baton.tasks.evaluate.model_info import ModelInfo
from baton.tasks.evaluate.spec import EvaluatorSpec
from baton.tasks.posttrain.encode import RowRefused
from baton.tasks.posttrain.rows import in_order
from baton.tasks.rewards.gold import own_answer
from baton.tasks.rows.marks import verdict
from baton.tasks.rows.stored import TRAIN, common_prefix, drops_faulty, encoded, read_rows

Messages = list[dict[str, Any]]
SPLIT_NAMES: dict[Split, str] = {"held_out": "held-out", "train": "training"}
Prompt = str | Messages  # TRL's two formats of prompts and completions


@dataclass(frozen=True)
class Question:
    id: str  # BLAKE3 of the row's line
    row: dict[str, Any]
    prompt: Prompt
    reference: Prompt | None
    tokens: list[int]

    @property
    def scored(self) -> dict[str, Any]:
        """The row as rewards get it in training, where a conversation's last turn is its completion."""
        if self.reference is None or not {"messages", "chosen"} & self.row.keys():
            return self.row
        return self.row | {"completion": self.reference}

    def answer(self, text: str) -> Prompt:
        """Return a completion in the prompt's format."""
        return text if isinstance(self.prompt, str) else [{"role": "assistant", "content": text}]


@dataclass(frozen=True)
class Questions:
    """The questions of an evaluator, and the number of rows left out."""

    questions: list[Question]
    too_long: int  # number of rows left out, since they are longer than the model's positions
    refused: list[str]  # reasons why the chat template rejects other rows, which are left out


def choose(
    name: str,
    rows: Path,
    spec: EvaluatorSpec,
    info: ModelInfo,
    seed: int,
    tools: Messages | None = None,
    split: Split = "held_out",
) -> Questions:
    """Select up to `spec.prompts` held-out rows, or `spec.train_prompts` training rows, ordered by a hash of content
    and seed, so that adding or removing rows doesn't reorder the others. `tools` are the schemas of the functions that
    the model can call, instead of the rows' schemas. Raises StageError if no row can be used."""
    room = info.positions - spec.max_new_tokens
    if room <= 0:
        raise StageError(
            f"evaluate.{name}.max_new_tokens: {spec.max_new_tokens}: the model has {info.positions} positions for "
            "prompt and completion together; use a smaller value"
        )
    chosen: list[Question] = []
    too_long, refused = 0, list[str]()
    most = spec.prompts if split == "held_out" else spec.train_prompts
    for id, row in _ordered(rows, seed, split):
        if len(chosen) == most:
            break
        prompt, reference = question_of(name, row)
        if tools and isinstance(prompt, str):
            raise StageError(f"evaluate.{name}: environment and tools need prompts of messages, not {prompt!r:.80}")
        try:
            tokens = info.encoder.prompt(row | {"prompt": prompt, "tools": tools or row.get("tools")})
        except RowRefused as error:
            if not drops_faulty(rows):
                raise
            refused.append(str(error))
            continue
        if len(tokens) > room:
            too_long += 1
        else:
            chosen.append(Question(id, row, prompt, reference, tokens))
    if not chosen:
        kind = SPLIT_NAMES[split]
        why = "its held-out split is empty; hold out more of it (`held_out:`)"
        if split == "train":
            why = "it has none; set train_prompts: 0, or hold out less of the set (`held_out:`)"
        if refused:
            why = f"the chat template rejects {len(refused)} {kind} rows, and {too_long} are too long: {refused[0]}"
        elif too_long:
            why = f"all {too_long} {kind} rows are too long for the model's {info.positions} positions"
        raise StageError(f"evaluate.{name}.data: {spec.data}: the set has no usable {kind} row: {why}")
    return Questions(chosen, too_long, refused)


def question_of(name: str, row: dict[str, Any]) -> tuple[Prompt, Prompt | None]:
    """Split a row into prompt and reference. Raises StageError for a row without a prompt."""
    if "messages" in row:
        turns: Messages = row["messages"]
        answers = (at for at, turn in enumerate(turns) if turn["role"] == "assistant" and turn.get(TRAIN, True))
        last = max(answers, default=len(turns))
        return turns[:last], None if verdict(row) is False else turns[last : last + 1] or None
    if "chosen" in row and "prompt" not in row:
        shared = common_prefix(row["chosen"], row["rejected"])
        return row["chosen"][:shared], row["chosen"][shared:]
    if "prompt" in row:
        return row["prompt"], row.get("chosen", own_answer(row))
    raise StageError(
        f"evaluate.{name}.data: the rows have the columns {', '.join(sorted(row))} and no prompt: rewards need rows of "
        "`messages` or with a `prompt`. Use bits_per_byte for plain text"
    )


def _ordered(rows: Path, seed: int, split: Split) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a split with their digests. Training rows are in the order in which post-training with the same
    seed chooses them, so that the first ones are among those that a model was trained on."""
    if split == "train":
        yield from ((text_digest(encoded(row)), row) for row in in_order(rows / "train.jsonl", seed))
        return
    lines = [(text_digest(encoded(row)), row) for row in read_rows(rows, "held_out")]
    yield from sorted(lines, key=lambda line: (text_digest(f"{seed}\0{line[0]}"), line[0]))
