"""The post-training part of a DAG: sets of rows, the trial of rewards on them, and the stages that train on them."""

from collections.abc import Callable, Collection
from typing import Any

from baton.tasks.core.seeds import title_of
from baton.tasks.reward_check.spec import RewardCheckSpec, RewardListSpec
from baton.tasks.rewards.gold import early
from baton.tasks.rows.spec import DecontaminateSpec
from baton.workflows.dag.call import Calls
from baton.workflows.dag.custom_stages import made_of, of_each_seed, stages_with_seeds
from baton.workflows.dag.post_training import BASE, repeated, reward_lists, steps
from baton.workflows.recipe import Recipe

ROWS = "rows-"  # begins the title of a set of rows


def rows_of(dag: Calls, recipe: Recipe, corpus: str | None, ready: dict[str, str]) -> dict[str, str]:
    """The sets of rows that the stages use, by name, as they were prepared. `ready`: those that were before the
    corpus."""
    trained = {step.spec.data for step in steps(recipe.post_training)}
    named = {name.removeprefix(ROWS) for stage in recipe.stages for name in stage.inputs if name.startswith(ROWS)}
    return ready | prepared(dag, recipe, corpus, {*trained, *named, *_evaluated(recipe)} - ready.keys())


def decontaminated(dag: Calls, recipe: Recipe, rows: dict[str, str]) -> dict[str, str]:
    """The same sets, each without the held-out rows of the evaluated ones."""
    evaluated = _evaluated(recipe)
    return {
        name: _decontaminated(dag, name, one, [rows[other] for other in evaluated if other != name])
        for name, one in rows.items()
    }


def parts_of(used: dict[str, str], prepared_rows: dict[str, str]) -> dict[str, str]:
    """Every set under a name of a report's or a card's parts: as it was used, then as it was prepared, where that is
    another."""
    every = [*used.values(), *(prepared_rows[name] for name in used if prepared_rows[name] != used[name])]
    return {f"rows_{number}": rows for number, rows in enumerate(every, 1)}


def custom_parts(dag: Calls) -> dict[str, str]:
    """The artifacts of custom stages under names of parts."""
    return {f"stage_{call.title}": call.title for call in dag if call.stage == "custom_artifact"}


def _evaluated(recipe: Recipe) -> list[str]:
    return recipe.evaluate.sets() if recipe.evaluate else []


def prepared(dag: Calls, recipe: Recipe, corpus: str | None, names: Collection[str]) -> dict[str, str]:
    """The sets of rows with these names."""
    return {
        name: dag.add(f"{ROWS}{name}", "prepare_rows", spec, corpora=[corpus] if corpus and spec.documents else [])
        for name, spec in recipe.data.items()
        if name in names
    }


def _decontaminated(dag: Calls, name: str, rows: str, evaluated: list[str]) -> str:
    """A set without rows that are held out in others."""
    if not evaluated:
        return rows
    return dag.add(f"decontaminate-{name}", "decontaminate", DecontaminateSpec(), rows=rows, against=evaluated)


def rewards_of(recipe: Recipe) -> RewardCheckSpec | None:
    """The trial of a recipe's rewards on the rows' own answers; None if no reward can be tried early."""
    lists = []
    for path, data, rewards, given in reward_lists(steps(recipe.post_training), recipe.evaluate):
        evaluated = path.startswith("evaluate.")
        some = [reward for reward in rewards if early(reward)]
        if some and data and not (evaluated and given):  # no environment has met the rows' own answers
            split: Any = "held_out" if evaluated else "train"
            lists.append(RewardListSpec(path=path, data=data, rewards=some, split=split, required=not evaluated))
    return RewardCheckSpec(lists=lists).with_memory() if lists else None


def rewards_tried(dag: Calls, recipe: Recipe, sets: dict[str, str]) -> dict[str, str]:
    """The trial, by the name of a part of the report; empty if there is none."""
    spec = rewards_of(recipe)
    if spec is None:
        return {}
    return {"rewards": dag.add("rewards", "check_rewards", spec, rows=[sets[name] for name in spec.sets()])}


def tuned(
    dag: Calls,
    recipe: Recipe,
    base: str,
    rows: dict[str, str],
    on_model: Callable[[str, str], object] = lambda *_: None,
    after: list[str] | None = None,
) -> str:
    """Add the stages of `post_training` and of `stages`, for each seed: a custom stage before the first stage that
    starts from its model, or at the end. `on_model` is called with the name and the title of each model that they make.
    They wait for the calls of `after`. Returns the title of the last model, with the first seed."""
    names = [step.name for step in steps(recipe.post_training)]
    seeded = of_each_seed(names, recipe.stages)
    custom = {stage.name: (stage, inputs) for stage, inputs in stages_with_seeds(recipe.stages, recipe.seeds, seeded)}
    models = {BASE: base}

    def call_title(name: str) -> str:
        """The title of the call that makes what has this name: a model's, or a call's title."""
        if name in custom:
            stage, named = custom.pop(name)
            inputs = {given: call_title(other) for given, other in named.items()}
            title = dag.add(name, f"custom_{stage.makes}", stage, after=after, inputs=inputs)
            if stage.makes == "model":
                models[name] = title
                on_model(name, title)
        return models.get(name, name)

    for step in repeated(recipe.post_training, recipe.seeds, seeded):
        title, start = title_of(step.stage, step.name), call_title(step.start_from)
        spec = step.spec if step.spec.placement else step.spec.with_rewards_tried()
        models[step.name] = dag.add(title, step.stage, spec, after=after, model=start, rows=rows[step.spec.data])
        on_model(step.name, title)
    for name in [*custom]:
        call_title(name)
    last = [stage for stage in recipe.stages if stage.makes == "model"]
    inputs = [name for stage in last for name in stage.inputs]
    between = made_of([*inputs, *(step.start_from for step in steps(recipe.post_training))], recipe.stages)
    return models[[BASE, *names, *(stage.name for stage in last if stage.name not in between)][-1]]
