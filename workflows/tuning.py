"""The post-training part of a DAG: sets of rows, and the stages that tune on them."""

from collections.abc import Callable, Iterator

from tasks.artifacts import Corpus, HFModel, Rows
from tasks.dpo.task import dpo
from tasks.grpo.task import grpo
from tasks.rows.task import rows
from tasks.sft.task import sft
from workflows.post_training import BASE, repeated, steps
from workflows.recipe import Recipe

TASKS: dict[str, Callable[..., HFModel]] = {"sft": sft, "dpo": dpo, "grpo": grpo}


def used_rows(recipe: Recipe) -> list[str]:
    """The sets of rows that some stage uses."""
    used = {step.spec.data for step in steps(recipe.post_training)}
    used |= set(recipe.evaluate.sets()) if recipe.evaluate else set()
    return [name for name in recipe.data if name in used]


def rows_of(recipe: Recipe, corpus: Corpus | None) -> dict[str, Rows]:
    """The sets of rows that some stage uses, by name."""
    specs = {name: recipe.data[name].as_found() for name in used_rows(recipe)}
    return {
        name: rows(spec=spec, corpora=[corpus] if corpus and spec.documents else []) for name, spec in specs.items()
    }


def tuned(recipe: Recipe, base: HFModel, sets: dict[str, Rows]) -> Iterator[HFModel]:
    """The model of each stage of `post_training`, in their order."""
    made = {BASE: base}
    for step in repeated(recipe.post_training, recipe.seeds):
        start = made[step.start_from]
        made[step.name] = TASKS[step.stage](spec=step.spec.as_found(), model=start, rows=sets[step.spec.data])
        yield made[step.name]
