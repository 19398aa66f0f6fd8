"""A held-out set: what is asked and what is scored of one corpus's held-out documents."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.data.documents import Document, read_documents
from tasks.evaluate.bits import held_out_texts, windows
from tasks.evaluate.spec import EvaluateSpec
from tasks.evaluate.subject import Subject
from tasks.job import StageError
from tasks.statements.extract import extract
from tasks.statements.prompt import Prompt

FIRST = "corpus"  # the set that must have all that is asked for; the others have what they have


@dataclass(frozen=True)
class Scored:
    """One document, the last of a set perhaps not to its end."""

    document: Document
    tokens: list[int]
    windows: list[list[int]]  # each begins with one token of context

    @property
    def bytes(self) -> int:
        return len(self.document.text.encode())


@dataclass(frozen=True)
class HeldOut:
    name: str  # of the input: corpus, more.0, …
    prompts: list[Prompt]
    questions: list[list[int]]  # the prompts' tokens
    documents: list[Scored]

    @property
    def windows(self) -> list[list[int]]:
        return [window for each in self.documents for window in each.windows]


def choose(name: str, corpus: Path, subject: Subject, spec: EvaluateSpec) -> HeldOut:
    """Up to `spec.prompts` prompts and `spec.held_out_bytes` of text. Raises StageError when the first set has
    fewer prompts."""
    documents = list(read_documents(corpus, "held_out"))
    prompts = choose_prompts(documents, subject, spec, all_of_them=name == FIRST)
    scored = []
    for text in held_out_texts(documents, spec.held_out_bytes):
        tokens = subject.tokens(text.text)
        # one position is kept for the token that vLLM has to be asked for
        scored.append(Scored(text, tokens, list(windows(tokens, subject.end_of_text, subject.positions - 1))))
    return HeldOut(name, prompts, [subject.tokens(prompt.text) for prompt in prompts], scored)


def choose_prompts(
    documents: Sequence[Document], subject: Subject, spec: EvaluateSpec, all_of_them: bool
) -> list[Prompt]:
    """The first `spec.prompts` prompts that leave room for a completion. Raises StageError when `all_of_them` are
    asked for and there are fewer, or no prompt leaves room."""
    room = subject.positions - spec.max_new_tokens
    if room <= 0:
        raise StageError(
            f"evaluate.max_new_tokens: {spec.max_new_tokens}: the model has {subject.positions} positions for the "
            "prompt and the completion together; ask for fewer tokens"
        )
    found = extract(
        documents, seed=spec.seed, per_function=spec.prompts_per_function, max_prompt_chars=spec.max_prompt_chars
    )
    fitting = [prompt for prompt in found if len(subject.tokens(prompt.text)) <= room]
    if all_of_them and len(fitting) < spec.prompts:
        raise StageError(
            f"evaluate.prompts: {spec.prompts}: the {len(documents)} held-out documents have {len(fitting)} places "
            f"to ask about (and {len(found) - len(fitting)} too long for the model's {subject.positions} positions); "
            "ask for fewer, take more out of each function (prompts_per_function), or hold out more of the corpus"
        )
    return fitting[: spec.prompts]
