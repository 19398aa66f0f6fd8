"""The post-training part of a DAG: sets of rows, the trial of rewards on them, and the stages that train on them."""

from collections.abc import Callable, Collection, Iterator
from typing import Any

from tasks.artifacts import Corpus, HFModel, RewardCheck, Rows
from tasks.dpo.spec import DPOSpec
from tasks.dpo.task import dpo
from tasks.grpo.spec import GRPOSpec
from tasks.grpo.task import grpo
from tasks.posttrain.spec import PostTrainSpec
from tasks.reward_check.spec import RewardCheckSpec, RewardListSpec
from tasks.reward_check.task import check_rewards
from tasks.rewards.gold import early
from tasks.rows.spec import DecontaminateSpec
from tasks.rows.task import decontaminate, prepare_rows
from tasks.sft.task import sft
from workflows.post_training import BASE, repeated, steps
from workflows.recipe import Recipe, context_of
from workflows.reward_checks import reward_lists

TASKS: dict[str, Callable[..., HFModel]] = {"sft": sft, "dpo": dpo, "grpo": grpo}


def rows_of(recipe: Recipe, corpus: Corpus | None, ready: dict[str, Rows]) -> dict[str, Rows]:
    """The sets of rows that the stages use, by name, as they were prepared. `ready`: those that were before the
    corpus."""
    trained = {step.spec.data for step in steps(recipe.post_training)}
    return ready | prepared(recipe, corpus, {*trained, *_evaluated(recipe)} - ready.keys())


def kept_apart(recipe: Recipe, rows: dict[str, Rows]) -> dict[str, Rows]:
    """The same sets, each without the held-out rows of the evaluated ones."""
    evaluated = _evaluated(recipe)
    return {
        name: _decontaminated(one, [rows[other] for other in evaluated if other != name]) for name, one in rows.items()
    }


def parts_of(used: dict[str, Rows], whole: dict[str, Rows]) -> dict[str, Rows]:
    """Every set under a name of a report's or a card's parts: as it was used, then as it was prepared, where that is
    another."""
    every = [*used.values(), *(whole[name] for name in used if whole[name] is not used[name])]
    return {f"rows_{number}": rows for number, rows in enumerate(every, 1)}


def _evaluated(recipe: Recipe) -> list[str]:
    return recipe.evaluate.sets() if recipe.evaluate else []


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


def rewards_of(recipe: Recipe) -> RewardCheckSpec | None:
    """The trial of a recipe's rewards on the rows' own answers; None if there is none that can be tried early."""
    lists = []
    for path, data, rewards, given in reward_lists(context_of(recipe)):
        evaluated = path.startswith("evaluate.")
        some = [reward for reward in rewards if early(reward)]
        if some and data and not (evaluated and given):  # no environment has met the rows' own answers
            split: Any = "held_out" if evaluated else "train"
            lists.append(RewardListSpec(path=path, data=data, rewards=some, split=split, required=not evaluated))
    return RewardCheckSpec(lists=lists) if lists else None


def rewards_tried(recipe: Recipe, sets: dict[str, Rows]) -> dict[str, RewardCheck]:
    """The trial, by the name of a part of the report; empty if there is none."""
    spec = rewards_of(recipe)
    if spec is None:
        return {}
    return {"rewards": check_rewards(spec=spec.as_found(), rows=[sets[name] for name in spec.sets()])}


def _with_rewards_tried(spec: PostTrainSpec) -> PostTrainSpec:
    """The spec of a stage whose rewards were tried before, if it has any and is not placed elsewhere."""
    if spec.placement:
        return spec
    if isinstance(spec, GRPOSpec):
        return spec.model_copy(update={"rewards_tried": True})
    if isinstance(spec, DPOSpec) and spec.pairs:
        return spec.model_copy(update={"pairs": spec.pairs.model_copy(update={"rewards_tried": True})})
    return spec


def tuned(recipe: Recipe, base: HFModel, sets: dict[str, Rows]) -> Iterator[HFModel]:
    """The model of each stage of `post_training`, in order, for each seed."""
    models = {BASE: base}
    for step in repeated(recipe.post_training, recipe.seeds):
        start = models[step.start_from]
        spec = _with_rewards_tried(step.spec.as_found())
        models[step.name] = TASKS[step.stage](spec=spec, model=start, rows=sets[step.spec.data])
        yield models[step.name]
