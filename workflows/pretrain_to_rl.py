"""From raw text to an RL-tuned, evaluated and published model.

    pyflyte run workflows/pretrain_to_rl.py pretrain_to_rl --recipe workflows/recipes/laptop.yaml

`stages` is a dynamic workflow, so the DAG has exactly the recipe's stages (workflows/dag/calls.py), and no empty node
for one that is off. `dag` is the same without the tracking record, to inspect what Flyte compiles.
"""

from flytekit import workflow

import baton.workflows.recipe.file  # noqa: F401 - reports problems of a recipe file
from baton.infra.storage.disk_errors import disk_errors_named
from baton.infra.tracking.execution import execution_id
from baton.tasks.report.artifact import Report
from baton.workflows.checks.table import fits_together
from baton.workflows.dag.calls import calls
from baton.workflows.dag.dynamic_part import dag_part
from baton.workflows.dag.recorded import begin
from baton.workflows.dag.walk import walk
from baton.workflows.recipe import Recipe, context_of


def dag(recipe: Recipe) -> Report:
    """The recipe's stages, in order."""
    report: Report = walk(calls(recipe.pinned(), execution_id()))["report"]
    return report


@dag_part
def stages(recipe: Recipe) -> Report:
    recipe = begin(recipe, [call.title for call in calls(recipe)] if fits_together(context_of(recipe)) else [])
    with disk_errors_named():
        return dag(recipe)


@workflow
def pretrain_to_rl(recipe: Recipe) -> Report:
    """Raw text → tokenizer → pretrain → convert → post-training → publish, evaluated throughout."""
    result: Report = stages(recipe=recipe)
    return result
