"""Fields that mark rows and turns that are not to be learned.

    learned_turn(message, "messages[1]")    whether a turn is learned; removes the marks. Raises RowError
    refusal(row, "messages")                the reason why a row is not to be learned, or ""
    verdict(row)                            whether its completion is desirable, for KTO

A turn with such a mark has no loss on its tokens. A row that is not to be learned, or has a rating or a
fraction as its weight, is refused, since all rows are learned with the same weight. The label of a completion or of a
conversation stays in its row: KTO learns from both kinds, and methods that learn only from desired ones refuse others.

The names are those of OpenAI, Mistral and Together (weight), axolotl (train, training, train_detail, train_on_turn),
ms-swift (loss), torchtune (masked), Megatron and verl (loss_mask), TRL's KTO (label) and LLaMA-Factory's (kto_tag).
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from baton.tasks.rows.check import RowError
from baton.tasks.rows.stored import TRAIN, Row

_LEARN = (
    "weight", TRAIN, "training", "train_detail", "train_on_turn", "trainable", "learn", "loss", "loss_mask",
    "loss_weight", "loss_scale",
)  # fmt: skip
_DO_NOT_LEARN = ("masked", "mask")  # true or 1: without a loss
TURN = (*_LEARN, *_DO_NOT_LEARN)
LABELS = ("label", "kto_tag")  # columns with the label of a completion; false marks one to avoid
_WORTH = ("rating",)
_WORDS = {"true": True, "false": False}


def learned_turn(message: Row, place: str) -> bool:
    """Return whether a turn is to be learned, by its marks, which are removed. Raises RowError for an invalid mark."""
    learned = True
    for name in [name for name in TURN if name in message]:
        value = message.pop(name)
        answer = _answer(name, value)
        if answer is None:
            raise RowError(f"{place}.{name}: a turn is learned or not: true or false, 1 or 0, not {value!r:.40}")
        if answer and value is not None and message.get("role") != "assistant" and name in _LEARN:
            raise RowError(f"{place}.{name}: only the assistant's turns are learned; leave it out of other turns")
        learned = learned and answer
    return learned


def refusal(row: Mapping[str, Any], kind: str) -> str:
    """The reason why a row of this kind is not learned like the others; empty if it is."""
    fix = "leave out such rows, or the column if it says nothing of the kind: columns: {%s: null}"
    for name in (*TURN, *LABELS):
        if row.get(name) is not None and _answer(name, row[name], kind) is not True:
            return f"{name}: {row[name]!r:.40}: not to be learned as other rows are; {fix % name}"
    for name in _WORTH:
        if row.get(name) is not None:
            return f"{name}: all rows are learned alike, whatever their {name}; {fix % name}"
    return ""


def verdict(row: Mapping[str, Any]) -> bool | None:
    """Return whether a row's completion is desirable, by its label: true or false, 1 or 0, also "true" or "false" as
    text. None if it has no such label, or two that contradict each other."""
    verdicts = {_verdict(row[name]) for name in LABELS if row.get(name) is not None}
    return verdicts.pop() if len(verdicts) == 1 else None


def labels(row: Mapping[str, Any]) -> dict[str, Any]:
    """The labels of a row, without NaN, and without text that is neither true nor false, which is a class."""
    found = {name: row[name] for name in LABELS if name in row}
    given = {name: value.item() if hasattr(value, "item") else value for name, value in found.items()}  # NumPy's
    return {
        name: value
        for name, value in given.items()
        if _verdict(value) is not None or (isinstance(value, int | float) and isfinite(value))
    }


def _verdict(value: Any) -> bool | None:
    if isinstance(value, str):
        return _WORDS.get(value.strip().lower())
    return bool(value) if isinstance(value, bool | int | float) and value in (0, 1) else None


def _answer(name: str, value: Any, kind: str = "") -> bool | None:
    """Return whether a mark's value means that the turn or row is learned; None if it is neither yes nor no."""
    if value is None:
        return True
    if isinstance(value, str) and value.strip().lower() in _WORDS:  # as in a CSV file
        value = _WORDS[value.strip().lower()]
    if isinstance(value, list):  # one value for each token or turn
        answers = {_answer(name, each) for each in value}
        return True if answers <= {True} else False if answers == {False} else None
    if name in LABELS and (value not in (0, 1) if kind != "text" else value is not False):
        return True  # a class of the text, not a verdict on it
    if not isinstance(value, bool | int | float) or value not in (0, 1):
        return None
    return bool(value) != (name in _DO_NOT_LEARN)
