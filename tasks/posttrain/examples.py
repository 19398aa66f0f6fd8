"""Next-statement examples out of the training modules, as token ids.

Prompt and statement are tokenized apart, as at inference: the prompt's last token is what the model
will see there, whatever the tokenizer would merge across the boundary.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.data.documents import read_row_group, row_groups
from tasks.job import StageError
from tasks.posttrain.spec import PostTrainSpec
from tasks.statements.extract import extract
from tasks.statements.prompt import Prompt

PER_FUNCTION = 2  # prompts of one function at most


@dataclass(frozen=True)
class Example:
    prompt: Prompt
    prompt_ids: list[int]
    statement_ids: list[int]  # the real statement, with the end-of-text token


def examples(corpus: Path, tokenizer: Any, spec: PostTrainSpec, count: int) -> list[Example]:
    """`count` different examples within the spec's lengths, chosen and ordered by its seed; fewer when
    the corpus has no more. Reads no more of the corpus than that takes. Raises StageError when there
    are none."""
    order = random.Random(spec.seed)
    groups = row_groups(corpus, "train")
    if not groups:
        raise StageError(f"{corpus} has no documents to train on; give a corpus whose train split has some")
    order.shuffle(groups)
    found: dict[str, Example] = {}
    for group in groups:
        for prompt in extract(read_row_group(group), seed=spec.seed, per_function=PER_FUNCTION):
            example = _encoded(prompt, tokenizer)
            if len(example.prompt_ids) <= spec.max_prompt_tokens and len(example.statement_ids) <= spec.max_new_tokens:
                found.setdefault(prompt.text, example)
        if len(found) >= count:
            break
    if not found:
        raise StageError(
            f"no function of the corpus gives a prompt of at most {spec.max_prompt_tokens} tokens with a statement of "
            f"at most {spec.max_new_tokens}; post-training needs Python modules, or larger limits"
        )
    chosen = list(found.values())
    order.shuffle(chosen)
    return chosen[:count]


def _encoded(prompt: Prompt, tokenizer: Any) -> Example:
    statement = [*encode(tokenizer, prompt.reference), tokenizer.eos_token_id]
    return Example(prompt, encode(tokenizer, prompt.text), statement)


def encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def check_positions(model: Any, spec: PostTrainSpec) -> None:
    """Raises StageError when a prompt and its statement may not fit the model."""
    positions, needed = model.config.max_position_embeddings, spec.max_prompt_tokens + spec.max_new_tokens
    if needed > positions:
        raise StageError(
            f"max_prompt_tokens + max_new_tokens = {needed}, but the model has {positions} positions; lower one of them"
        )
