"""Check custom stages: their names and inputs, and their functions, each imported in a separate process."""

from collections.abc import Iterator

from baton.tasks.core.seeds import title_of
from baton.tasks.core.spec import Problem
from baton.tasks.custom.function import checked
from baton.tasks.custom.spec import GROUP, CustomSpec
from baton.workflows.checks.run_context import RunContext, runs_on_a_cluster
from baton.workflows.checks.sections import FIT
from baton.workflows.dag.calls import calls
from baton.workflows.dag.custom_stages import NOT_RESERVED, is_reserved, made_of
from baton.workflows.dag.post_training import BASE
from baton.workflows.dag.tuning import ROWS
from baton.workflows.recipe import Recipe

# titles of calls whose outputs custom stages cannot have
LATER = ("check-best", "choose", "serve", "publish", "report")
# stages of a refresh, beside the tuning
IN_A_REFRESH = ("prepare_corpus", "prepare_clean_corpus", "prepare_rows", "decontaminate", "check_rewards")
# other titles of a night
CONTINUOUS_TITLES = ("increment", "gather", "compact", "check-metric", "evaluate-champion", "decide", "promote")


def names_of_stages(context: RunContext) -> Iterator[Problem]:
    """Check that names are unique among the run's stages, and that inputs are outputs of other stages which do not
    depend on the stage itself. No problem is reported while other sections do not fit."""
    custom: list[CustomSpec] = context.specs.get("stages", [])
    if not custom or any(problem for check in FIT for problem in check(context)):
        return
    dag = calls(Recipe.model_construct(**context.specs | {"stages": [], "seeds": 1}))
    rows = [f"{ROWS}{name}" for name in context.specs.get("data", {})]
    models = [BASE] if "convert" in context or "start_from" in context else []
    models += [step.name for step in context.tunings()]
    titles = [call.title for call in dag if "grow" not in context or call.stage in IN_A_REFRESH]
    not_inputs = {*LATER, *(title_of(step.stage, step.name) for step in context.tunings())} - {*models}
    known = [name for name in dict.fromkeys([*models, *titles, *rows]) if name not in not_inputs]
    taken = {BASE, *known, *LATER, *CONTINUOUS_TITLES, *(call.title for call in dag)}
    for number, stage in enumerate(custom):
        at = f"stages.{number}"
        if stage.name in taken:
            yield Problem(f"{at}.name", stage.name, f"another name than {', '.join(sorted(taken))}")
        if is_reserved(stage.name):
            yield Problem(f"{at}.name", stage.name, NOT_RESERVED)
        taken.add(stage.name)
        made = {name: stage.name in made_of([name], custom) for name in [*known, *(each.name for each in custom)]}
        allowed = f"one of {', '.join(name for name, of_itself in made.items() if not of_itself)}"
        for name in stage.inputs:
            if made.get(name, True):
                why = f"; {name} is made of {stage.name}" if name in made and name != stage.name else ""
                yield Problem(f"{at}.inputs", name, allowed + why)


def functions_of_stages(context: RunContext) -> Iterator[Problem]:
    """Check that functions can be imported, and that the stages' own fields fit them. On a cluster, where other
    packages may be installed, functions are not imported."""
    for number, stage in enumerate(context.specs.get("stages", [])):
        path = f"stages.{number}"
        if not (function := stage.named()):
            yield Problem(f"{path}.stage", stage.stage, f"a file and a function, or a name in the entry points {GROUP}")
        elif problems := function.problems():
            yield from (Problem(f"{path}.stage", stage.stage, problem.allowed) for problem in problems)
        elif not runs_on_a_cluster():
            yield from (problem.under(path) for problem in checked(stage))
