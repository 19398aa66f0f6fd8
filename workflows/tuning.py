"""The post-training part of a DAG: sets of rows, and the stages that train on them."""

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


def rows_of(recipe: Recipe, corpus: Corpus | None, ready: dict[str, Rows]) -> dict[str, Rows]:
    """The sets of rows that the stages use, by name, each without the held-out rows of the evaluated ones. `ready`:
    those that were prepared before the corpus."""
    trained = {step.spec.data for step in steps(recipe.post_training)}
    evaluated = recipe.evaluate.sets() if recipe.evaluate else []
    found = ready | prepared(recipe, corpus, {*trained, *evaluated} - ready.keys())
    return {
        name: _decontaminated(rows, [found[other] for other in evaluated if other != name])
        for name, rows in found.items()
    }


def prepared(recipe: Recipe, corpus: Corpus | None, names: Collection[str]) -> dict[str, Rows]:
    """The sets of rows with these names."""
    specs = {name: spec.as_found() for name, spec in recipe.data.items() if name in names}
    return {
        name: prepare_rows(spec=spec, corpora=[corpus] if corpus is not None and spec.documents else [])
        for name, spec in specs.items()
    }


def _decontaminated(rows: Rows, evaluated: list[Rows]) -> Rows:
    """A set without rows that are held out in others."""
    return decontaminate(spec=DecontaminateSpec(), rows=rows, against=evaluated) if evaluated else rows


def tuned(recipe: Recipe, base: HFModel, sets: dict[str, Rows]) -> Iterator[HFModel]:
    """The model of each stage of `post_training`, in order, for each seed."""
    models = {BASE: base}
    for step in repeated(recipe.post_training, recipe.seeds):
        start = models[step.start_from]
        models[step.name] = TASKS[step.stage](spec=step.spec.as_found(), model=start, rows=sets[step.spec.data])
        yield models[step.name]
