"""All problems are reported at once: of any two planted problems, both are found. Checks that depend on a wrong
value come later."""

import copy
import itertools
import json
import random
from typing import Any, NamedTuple

import pytest

from baton.tasks.core.spec import Problem
from baton.workflows.checks.table import checked
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.error import RecipeError
from baton.workflows.recipe.text import load
from tests.shipped import shipped

ON_ITS_OWN = "a field that is set to this is left out"


class Planted(NamedTuple):
    """A problem in the laptop's recipe."""

    path: str  # the field that is set
    value: Any
    reported: str  # the reported field
    words: str  # a part of the message


PLANTED = [
    # unknown
    Planted("pretrian", 5, "pretrian", "did you mean pretrain"),
    Planted("pretrain.step", 5, "pretrain.step", "did you mean steps"),
    Planted("pretrain.model.layer", 5, "pretrain.model.layer", "did you mean layers"),
    Planted("corpus.source.path", "x", "corpus.source.path", "unknown"),
    Planted("post_training.0.sft.placement.node", 2, "post_training.0.sft.placement.node", "did you mean nodes"),
    # wrong types
    Planted("name", 5, "name", "valid string"),
    Planted("shards", "on", "shards", "write `shards: {}`"),
    Planted("publish", 3, "publish", "write `publish: {}`"),
    Planted("pretrain.steps", "many", "pretrain.steps", "valid integer"),
    Planted("pretrain.model.tied_embeddings", "perhaps", "pretrain.model.tied_embeddings", "boolean"),
    Planted("pretrain.model", 7, "pretrain.model", "mapping"),
    Planted("pretrain.layout.device", 5, "pretrain.layout.device", "valid string"),
    Planted("corpus.held_out", "much", "corpus.held_out", "valid number"),
    Planted("tokenizer.vocab_size", True, "tokenizer.vocab_size", "valid integer"),
    Planted("post_training.0.sft.seed", None, "post_training.0.sft.seed", "valid integer"),
    Planted("evaluate.statements.prompts", 1.5, "evaluate.statements.prompts", "valid integer"),
    # out of bounds, or not one of the choices
    Planted("pretrain.model.hidden", 0, "pretrain.model.hidden", "greater than or equal"),
    Planted("pretrain.optimizer.beta2", 1.0, "pretrain.optimizer.beta2", "less than 1"),
    Planted("pretrain.global_batch", -1, "pretrain.global_batch", "greater than or equal"),
    Planted("pretrain.precision", "fp64", "pretrain.precision", "'bf16'"),
    Planted("post_training.1.dpo.learning_rate", -1.0, "post_training.1.dpo.learning_rate", "greater than 0"),
    Planted("post_training.2.grpo.beta", -1, "post_training.2.grpo.beta", "greater than or equal to 0"),
    Planted("convert.dtype", "int3", "convert.dtype", "'bf16'"),
    Planted("audit.bound", 1.0, "audit.bound", "less than or equal"),
    Planted("serve.max_num_seqs", 0, "serve.max_num_seqs", "greater than or equal"),
    # fields that contradict each other
    Planted("pretrain.model.kv_heads", 3, "pretrain.model.kv_heads", "must divide heads"),
    Planted("pretrain.layout.micro_batch", 7, "pretrain.layout.micro_batch", "must divide"),
    Planted("pretrain.optimizer.min_lr", 0.5, "pretrain.optimizer.min_lr", "at most lr"),
    Planted("pretrain.optimizer.warmup_from", 0.7, "pretrain.optimizer.warmup_from", "at most lr"),
    Planted("pretrain.optimizer.warmup_steps", 9999, "pretrain.optimizer.warmup_steps", "less than steps"),
    Planted("pretrain.batch_warmup", {"start": 15, "increment": 9}, "pretrain.batch_warmup.increment", "must divide"),
    Planted("pretrain.data_weights", [-1.0], "pretrain.data_weights", "0 or more each"),
    Planted("post_training.0.sft.layout", {"micro_batch": 5}, "post_training.0.sft.layout.micro_batch", "divisor"),
    Planted("post_training.1.dpo.warmup_steps", 5000, "post_training.1.dpo.warmup_steps", "fewer than steps"),
    Planted("post_training.2.grpo.generations", 7, "post_training.2.grpo.generations", "divisor"),
    Planted("serve.load.concurrency", [2, 1], "serve.load.concurrency", "begin with 1"),
    Planted("publish.alias", "latest", "publish.alias", "other than latest"),
    # stages that do not fit together, and missing files
    Planted("pretrain.sequence_length", 1024, "pretrain.sequence_length", "max_positions"),
    Planted("pretrain.model.head_dim", 16, "pretrain.model.head_dim", "vLLM"),
    Planted("pretrain.model.vocab_size", 4000, "pretrain.model.vocab_size", "(4096)"),
    Planted("evaluate.statements.max_new_tokens", 600, "evaluate.statements.max_new_tokens", "max_positions (512)"),
    Planted("post_training.2.grpo.max_prompt_tokens", 500, "post_training.2.grpo.max_prompt_tokens", "max_positions (512)"),
    Planted("post_training.0.sft.placement.nodes", 2, "post_training.0.sft.placement.nodes", "layout.nodes"),
    Planted("post_training.1.dpo.placement.setup", "export X_TOKEN=abc", "post_training.1.dpo.placement.setup", "placement.secrets"),
    Planted("tokenizer", ON_ITS_OWN, "shards", "needs tokenizer"),
    Planted("more_corpora", [{"source": {"kind": "files", "path": "/no"}}], "more_corpora.0.source.path", "does not exist"),
]  # fmt: skip

PAIRS = [
    (one, other)
    for one, other in itertools.combinations(PLANTED, 2)
    if not f"{one.path}.".startswith(f"{other.path}.") and not f"{other.path}.".startswith(f"{one.path}.")
]


def refused(*planted: Planted) -> RecipeError:
    """Return the error for the laptop's recipe with these fields set."""
    recipe = shipped("laptop.yaml")
    for path, value, _, _ in planted:
        *parents, last = path.split(".")
        section: Any = recipe
        for parent in parents:
            section = section[int(parent)] if isinstance(section, list) else section.setdefault(parent, {})
        if value == ON_ITS_OWN:
            del section[last]
        else:
            section[last] = copy.deepcopy(value)
    with pytest.raises(RecipeError) as caught:
        load(json.dumps(recipe), Recipe.model_validate, check=checked)
    return caught.value


def hidden(found: list[Problem], *planted: Planted) -> list[Planted]:
    """Return the planted problems that were not found."""
    return [
        each
        for each in planted
        if not any(problem.path == each.reported and each.words in problem.allowed for problem in found)
    ]


# (hidden problem, the one that hides it): the first depends on a field that is unknown or missing because of the second
NOT_KNOWN = {
    ("pretrain.layout.micro_batch", "pretrain.global_batch"),
    ("pretrain.batch_warmup", "pretrain.global_batch"),
    ("pretrain.optimizer.warmup_steps", "pretrain.steps"),
    ("pretrain.sequence_length", "pretrain.model"),
    ("evaluate.statements.max_new_tokens", "pretrain.model"),
    ("post_training.2.grpo.max_prompt_tokens", "pretrain.model"),
    ("pretrain.model.vocab_size", "tokenizer.vocab_size"),
    ("pretrain.model.vocab_size", "tokenizer"),
}


WRONG_VALUES = PLANTED[5:25]
OF_SEVERAL_SECTIONS = [each for each in PLANTED[37:] if each.path not in ("tokenizer", "more_corpora")]


def _section(planted: Planted) -> str:
    return planted.reported.partition(".")[0]


def test_there_are_forty_problems_to_plant() -> None:
    assert len(PLANTED) >= 40 and len(PAIRS) >= 780


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: str(planted.path))
def test_a_problem_is_reported(planted: Planted) -> None:
    assert not hidden(refused(planted).problems, planted)


def check(pairs: list[tuple[Planted, Planted]]) -> None:
    """Check that both problems are reported, and no problem that neither of them causes."""
    alone = {planted.path: {each.path for each in refused(planted).problems} for pair in pairs for planted in pair}
    for one, other in pairs:
        error = refused(one, other)
        found = error.problems
        for missing in hidden(found, one, other):
            by = other if missing is one else one
            is_later = by in WRONG_VALUES and (missing in OF_SEVERAL_SECTIONS or _section(missing) == _section(by))
            assert is_later or (missing.path, by.path) in NOT_KNOWN, f"{one.path} and {other.path}: {found}"
            assert "once the values are correct" in error.message or not is_later
        assert {problem.path for problem in found} <= alone[one.path] | alone[other.path], f"{one.path}, {other.path}"


@pytest.mark.long
def test_neither_of_two_problems_hides_the_other() -> None:
    check(random.Random(14).sample(PAIRS, 150))


@pytest.mark.slow
def test_no_problem_hides_another() -> None:
    check(PAIRS)
