"""The post-training part of a DAG: sets of rows, and the stages that tune on them."""

from collections.abc import Callable, Collection, Iterator

from tasks.artifacts import Corpus, HFModel, Rows
from tasks.dpo.task import dpo
from tasks.grpo.task import grpo
from tasks.rows.spec import DecontaminateSpec
from tasks.rows.task import decontaminate, prepare_rows
from tasks.sft.task import sft
from workflows.post_training import BASE, repeated, steps
from workflows.recipe import Recipe

TASKS: dict[str, Callable[..., HFModel]] = {"sft": sft, "dpo": dpo, "grpo": grpo}


def rows_of(recipe: Recipe, corpus: Corpus | None) -> dict[str, Rows]:
    """The sets of rows that some stage uses, by name. What is trained on has nothing of what is asked of any set."""
    trained = {step.spec.data for step in steps(recipe.post_training)}
    asked = recipe.evaluate.sets() if recipe.evaluate else []
    found = prepared(recipe, corpus, {*trained, *asked})
    return {name: _apart(each, [found[other] for other in asked if other != name]) for name, each in found.items()}


def prepared(recipe: Recipe, corpus: Corpus | None, names: Collection[str]) -> dict[str, Rows]:
    """Sets of rows by name."""
    specs = {name: spec.as_found() for name, spec in recipe.data.items() if name in names}
    return {
        name: prepare_rows(spec=spec, corpora=[corpus] if corpus is not None and spec.documents else [])
        for name, spec in specs.items()
    }


def _apart(rows: Rows, asked: list[Rows]) -> Rows:
    """A set without what stands in the held-out parts of others."""
    return decontaminate(spec=DecontaminateSpec(), rows=rows, against=asked) if asked else rows


def tuned(recipe: Recipe, base: HFModel, sets: dict[str, Rows]) -> Iterator[HFModel]:
    """The model of each stage of `post_training`, in their order, for each seed."""
    made = {BASE: base}
    for step in repeated(recipe.post_training, recipe.seeds):
        start = made[step.start_from]
        made[step.name] = TASKS[step.stage](spec=step.spec.as_found(), model=start, rows=sets[step.spec.data])
        yield made[step.name]
