"""Check custom stages: their names and inputs, and their functions, each imported in a separate process."""

from collections.abc import Iterator

from tasks.custom.function import checked
from tasks.custom.spec import GROUP, CustomSpec
from tasks.spec import Problem
from workflows.calls import calls
from workflows.checks.sections import FIT
from workflows.post_training import BASE
from workflows.recipe import Recipe
from workflows.run_context import RunContext, runs_on_a_cluster
from workflows.tuning import ROWS

LATER = ("choose", "serve", "publish", "report")  # titles of calls that come after custom stages


def names_of_stages(context: RunContext) -> list[Problem]:
    """Names are unique among the run's stages, and inputs are outputs of earlier ones. No problem is
    reported while other sections do not fit."""
    custom: list[CustomSpec] = context.specs.get("stages", [])
    if not custom or any(check(context) for check in FIT):
        return []
    problems = []
    titles = [call.title for call in calls(Recipe.model_construct(**context.specs | {"stages": []}))]
    rows = [f"{ROWS}{name}" for name in context.specs.get("data", {})]
    models = [BASE, *(step.name for step in context.tunings())]
    known = [name for name in dict.fromkeys([*models, *titles, *rows]) if name not in LATER]
    taken = {*known, *LATER}
    for number, stage in enumerate(custom):
        if stage.name in taken:
            problems.append(
                Problem(f"stages.{number}.name", stage.name, f"another name than {', '.join(sorted(taken))}")
            )
        problems += [
            Problem(f"stages.{number}.inputs", name, f"one of {', '.join(known)}")
            for name in stage.inputs
            if name not in known
        ]
        known.append(stage.name)
        taken.add(stage.name)
    return problems


def functions_of_stages(context: RunContext) -> list[Problem]:
    """Functions can be imported, and the stages' own fields fit them. On a cluster other packages may be installed."""
    return list(_problems(context))


def _problems(context: RunContext) -> Iterator[Problem]:
    for number, stage in enumerate(context.specs.get("stages", [])):
        path = f"stages.{number}"
        if not (function := stage.named()):
            yield Problem(f"{path}.stage", stage.stage, f"a file and a function, or a name in the entry points {GROUP}")
        elif problems := function.problems():
            yield from (Problem(f"{path}.stage", stage.stage, problem.allowed) for problem in problems)
        elif not runs_on_a_cluster():
            yield from (problem.under(path) for problem in checked(stage))
