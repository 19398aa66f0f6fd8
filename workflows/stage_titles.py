"""The titles of the stages that a recipe's DAG has, known before it runs: a page can show what is still to come.

Read off the recipe, because compiling the DAG (dry_run.py) takes seconds; tests/workflows/test_stage_titles.py
compares the two.
"""

from collections.abc import Iterator
from typing import Any

from tasks.choose.task import choose
from tasks.convert.task import audit, convert, import_hf, load_hf
from tasks.data.spec import CorpusSpec
from tasks.data.task import encode_partitions, prepare_corpus, read_partitions, tokenize, train_tokenizer
from tasks.evaluate.task import evaluate
from tasks.pretrain.task import pretrain
from tasks.publish.task import publish
from tasks.report.task import report
from tasks.reward_check.task import check_rewards
from tasks.rows.task import decontaminate, prepare_rows
from tasks.seeds import title_of
from tasks.serve.task import serve
from workflows.corpora import evaluated_names, shares, token_shares
from workflows.post_training import BASE, repeated, steps
from workflows.recipe import Recipe
from workflows.tuning import rewards_of


def stage_titles(recipe: Recipe) -> list[str]:
    """One title a stage, in the order of `pretrain_to_rl.dag`."""
    return list(_titles(recipe))


def _titles(recipe: Recipe) -> Iterator[str]:
    tuning = list(repeated(recipe.post_training, recipe.seeds))
    first = evaluated_names(recipe)
    yield from (_title(prepare_rows) for _ in first)
    if recipe.corpus:
        yield from _corpus_titles(recipe.corpus)
    yield from _row_titles(recipe, first)
    if rewards_of(recipe):
        yield _title(check_rewards)
    for spec in recipe.more_corpora:
        yield from _corpus_titles(spec)
    if recipe.tokenizer:
        yield _title(train_tokenizer)
    if recipe.shards:
        for _ in (recipe.corpus, *recipe.more_corpora):
            yield from (_title(encode_partitions) for _ in token_shares(recipe.shards))
            yield _title(tokenize)
    if recipe.pretrain:
        if recipe.init_from:
            yield _title(import_hf)
        yield _title(pretrain)
    if recipe.convert:
        yield _title(convert)
        if recipe.audit:
            yield _title(audit)
    if recipe.start_from:
        yield _title(load_hf)
    if recipe.convert or recipe.start_from:
        if recipe.evaluate:
            yield f"{_title(evaluate)}-{BASE}"
        for step in tuning:
            yield title_of(step.stage, step.name)
            if recipe.evaluate:
                yield f"{_title(evaluate)}-{step.name}"
    if recipe.publish and recipe.publish.best:
        yield _title(choose)
    if recipe.serve:
        yield _title(serve)
    if recipe.publish:
        yield _title(publish)
    yield _title(report)


def _corpus_titles(spec: CorpusSpec) -> Iterator[str]:
    """As `corpora.corpus_of`."""
    yield from (_title(read_partitions) for _ in shares(spec))
    yield _title(prepare_corpus)


def _row_titles(recipe: Recipe, first: list[str]) -> Iterator[str]:
    """As `tuning.rows_of`: each set is prepared, unless it was before the corpus, then kept apart from the sets that an
    evaluation uses."""
    evaluated = recipe.evaluate.sets() if recipe.evaluate else []
    used = {*evaluated, *(step.spec.data for step in steps(recipe.post_training))}
    names = [name for name in recipe.data if name in used]
    yield from (_title(prepare_rows) for name in names if name not in first)
    yield from (_title(decontaminate) for name in names if any(other != name for other in evaluated))


def _title(task: Any) -> str:
    """A stage run without a title has its engine's name. `@stage` types tasks as functions, hence `Any`."""
    title: str = task.task_config.engine.stage
    return title
