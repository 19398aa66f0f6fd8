"""Remove a model's thoughts before its answer. Standard library only, since rewards use this beside users' code.

    thinking = Thinking.of(think_end, template)
    thinking.answer(thinking.opened(prompt) + text)      the text after the last end of a thought

The same rule holds for lm-eval's tasks and for the rewards that read an answer, in evaluation and in training. A
thought with an end is removed. If a thought begins in the completion or at the end of its prompt and has no end, there
is no answer. A text without a thought is an answer. The first marker in a text determines the model's markers, since
the model may write those of other models in its thought or its answer.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

# Markers of the beginning and end of thinking in the chat templates of DeepSeek, Qwen and most others (<think>), of
# Mistral ([THINK]), OpenAI's gpt-oss (channels), Seed-OSS, Kimi, Cohere and OpenThinker
THINKING = {
    "<think>": "</think>", "<thinking>": "</thinking>", "<thought>": "</thought>", "[THINK]": "[/THINK]",
    "<|channel|>analysis": "<|channel|>final<|message|>", "<seed:think>": "</seed:think>", "◁think▷": "◁/think▷",
    "<|START_THINKING|>": "<|END_THINKING|>", "<|begin_of_thought|>": "<|end_of_thought|>",
}  # fmt: skip


@dataclass(frozen=True)
class Thinking:
    """The markers that begin and end a model's thoughts."""

    pairs: tuple[tuple[str, str], ...] = tuple(THINKING.items())  # an unknown beginning is ""
    expected: bool = False  # whether the recipe or the chat template shows that the model thinks

    @classmethod
    def of(cls, think_end: str | None, template: str = "") -> Self:
        """Return the markers for a recipe's `think_end`: None stands for the usual ends, "" for no thoughts at all."""
        if think_end is None:
            return cls(expected=any(end in template for end in THINKING.values()))
        if think_end == "":
            return cls(())
        known = tuple((begin, end) for begin, end in THINKING.items() if end == think_end)
        return cls(known or (("", think_end),), expected=True)

    def ends(self, text: str) -> list[str]:
        """Return the ends of thoughts in a text."""
        return [end for _, end in self._pair(text) if end in text]

    def opened(self, prompt: str) -> str:
        """Return the beginning of a thought at the end of a prompt, or ""."""
        prompt = prompt.rstrip()
        return next((begin for begin, _ in self.pairs if begin and prompt.endswith(begin)), "")

    def is_open(self, text: str) -> bool:
        """Return whether a thought begins in a text and has no end."""
        return any(begin and text.rfind(begin) > text.rfind(end) for begin, end in self._pair(text))

    def answer(self, text: str) -> str:
        """Return the text after its thought, or "" if the thought has no end."""
        if self.is_open(text):
            return ""
        return next((text.rpartition(end)[2] for _, end in self._pair(text)), text)

    def _pair(self, text: str) -> list[tuple[str, str]]:
        """Return the markers of a text's thought; empty if it has none."""
        places = [(at, pair) for pair in self.pairs for marker in pair if marker and (at := text.find(marker)) >= 0]
        return [min(places)[1]] if places else []


@dataclass
class ThinkingCounts:
    """Counts of the thoughts removed from completions, for a report."""

    named: str = ""  # the end that the recipe names
    completions: int = 0
    left_out: int = 0  # completions with a thought that has an end
    open: int = 0  # completions with a thought that has no end
    without: int = 0  # completions without a thought
    ends: list[str] = field(default_factory=list)  # ends that were found
    rewards: list[str] = field(default_factory=list)  # rewards that ignore thoughts; none for lm-eval's tasks
    others: list[str] = field(default_factory=list)  # rewards that score a completion with its thought

    def note(self, thinking: Thinking, text: str) -> None:
        """Count a completion, which includes the beginning of a thought in its prompt."""
        self.completions += 1
        ends = thinking.ends(text)
        self.ends += [end for end in ends if end not in self.ends]
        if thinking.is_open(text):
            self.open += 1
        elif ends:
            self.left_out += 1
        else:
            self.without += 1

    def as_json(self) -> dict[str, Any]:
        """Return the counts; empty if there was no thought, unless the recipe names the end of thoughts."""
        return vars(self) if self.left_out or self.open or (self.named and self.completions) else {}


def in_words(counts: Mapping[str, Any]) -> str:
    """Describe `ThinkingCounts.as_json` in a sentence."""
    ends = " or ".join(counts["ends"]) or counts["named"]
    thoughts = f"thoughts{f' up to {ends}' if ends else ''}"
    of = f"of {counts['completions']:,} completions"
    others = ", ".join(counts["others"])
    if others and not counts["rewards"]:
        return (
            f"{counts['left_out'] + counts['open']:,} {of} have {thoughts}, which {others} scored too; `think_end` "
            "leaves them out"
        )
    return (
        f"{thoughts} were left out of {counts['left_out']:,} {of}"
        + f"; {counts['open']:,} had no end of their thought, and so no answer" * bool(counts["open"])
        + f"; {counts['without']:,} had no such end, and were scored whole"
        * bool(counts["named"] and counts["without"])
        + f"; {others} scored them too, which `think_end` changes" * bool(others)
    )


def markers(think_end: str | None = None) -> Iterator[str]:
    """Yield the texts that may begin or end a thought."""
    yield from (text for pair in THINKING.items() for text in pair)
    if think_end:
        yield think_end


def with_beginning(completion: Any, begin: str) -> Any:
    """Put the beginning of a thought in the prompt before a completion, which is text or messages."""
    if not begin:
        return completion
    if isinstance(completion, str):
        return begin + completion
    first, *others = completion
    return [first | {"content": begin + (first.get("content") or "")}, *others]


def without_thoughts(thinking: Thinking, completion: Any) -> Any:
    """Remove the model's thoughts, and the line ends after them, from a completion, which is text or messages."""
    if isinstance(completion, str):
        answer = thinking.answer(completion)
        return answer if answer == completion else answer.lstrip("\n")
    if isinstance(completion, list):
        return [without_thoughts(thinking, message) for message in completion]
    if completion.get("role") != "assistant" or not isinstance(completion.get("content"), str):
        return completion
    return completion | {"content": without_thoughts(thinking, completion["content"])}
