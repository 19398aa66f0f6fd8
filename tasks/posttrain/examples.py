"""Next-statement examples out of the training modules, as token ids.

Prompt and statement are tokenized apart, as at inference: the prompt's last token is what the model
will see there, whatever the tokenizer would merge across the boundary.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tasks.data.documents import read_documents
from tasks.job import StageError
from tasks.posttrain.spec import PostTrainSpec
from tasks.statements.extract import extract
from tasks.statements.prompt import Prompt

PER_FUNCTION = 4  # prompts of one function: enough variety, few repetitions


@dataclass(frozen=True)
class Example:
    prompt: Prompt
    prompt_ids: list[int]
    statement_ids: list[int]  # the real statement, with the end-of-text token


def examples(corpus: Path, tokenizer: Any, spec: PostTrainSpec, count: int) -> list[Example]:
    """`count` different examples within the spec's lengths, chosen by its seed; fewer when the corpus
    has no more. Raises StageError when it has none."""
    prompts = extract(read_documents(corpus, "train"), seed=spec.seed, per_function=PER_FUNCTION)
    random.Random(spec.seed).shuffle(prompts)
    found = list(islice(_within_lengths(prompts, tokenizer, spec), count))
    if not found:
        raise StageError(
            f"no function of the corpus gives a prompt of at most {spec.max_prompt_tokens} tokens with a statement of "
            f"at most {spec.max_new_tokens}; post-training needs Python modules, or larger limits"
        )
    return found


def _within_lengths(prompts: list[Prompt], tokenizer: Any, spec: PostTrainSpec) -> Iterator[Example]:
    for prompt in prompts:
        prompt_ids, statement_ids = encode(tokenizer, prompt.text), encode(tokenizer, prompt.reference)
        if len(prompt_ids) <= spec.max_prompt_tokens and len(statement_ids) < spec.max_new_tokens:
            yield Example(prompt, prompt_ids, [*statement_ids, tokenizer.eos_token_id])


def encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def check_positions(model: Any, spec: PostTrainSpec) -> None:
    """Raises StageError when a prompt and its statement may not fit the model."""
    positions, needed = model.config.max_position_embeddings, spec.max_prompt_tokens + spec.max_new_tokens
    if needed > positions:
        raise StageError(
            f"max_prompt_tokens + max_new_tokens = {needed}, but the model has {positions} positions; lower one of them"
        )
