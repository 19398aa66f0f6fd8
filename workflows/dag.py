"""A recipe's DAG, looked at before anything runs: its stages in their order, and what the cache has of them.

Flyte compiles the very function that it would run, and each stage is looked up in Flyte's local cache
under the very key that the run would use. So nothing here knows which stages there are.
"""

import json
from dataclasses import dataclass
from typing import Any

from flytekit.core.context_manager import CompilationState, FlyteContext, FlyteContextManager
from flytekit.core.local_cache import LocalTaskCache
from flytekit.core.node import Node
from flytekit.core.promise import Promise, translate_inputs_to_literals
from flytekit.core.type_engine import TypeEngine
from flytekit.core.workflow import get_promise
from flytekit.models.literals import Literal, LiteralMap
from pydantic import ValidationError

from tasks.artifacts import Artifact
from tasks.manifest import ArtifactError
from tasks.posttrain.spec import PostTrainSpec
from tasks.seeds import title_of
from tasks.spec import StageSpec
from tasks.stage import StageTask
from workflows.pretrain_to_rl import dag
from workflows.recipe import Recipe

Made = dict[Node, dict[str, Promise]]  # what is known of the stages' outputs


@dataclass(frozen=True)
class Step:
    """One stage of the run."""

    name: str  # the stage's; its second use is stage-2; of post-training the model's, "sft seed 1" of a repetition
    stage: str
    after: tuple[str, ...]
    spec: StageSpec
    cached: str | None  # the artifact's digest


def steps_of(recipe: Recipe) -> list[Step]:
    """Every stage that the recipe asks for, in an order in which they can run."""
    here = FlyteContextManager.current_context()
    compiling = here.with_compilation_state(CompilationState(prefix=""))
    with FlyteContextManager.with_context(compiling) as context:
        dag(recipe)
        state = context.compilation_state
    steps: dict[str, Step] = {}  # by the node's id
    made: Made = {}
    for node in state.nodes if state else ():
        stage = node.flyte_entity.task_config.engine.stage
        uses = 1 + sum(step.stage == stage for step in steps.values())
        before = tuple(steps[parent].name for parent in steps if parent in {each.id for each in node.upstream_nodes})
        constants = _constants(here, node)
        spec = constants["spec"].joined(json.loads(constants["how"]))
        name = stage if uses == 1 else f"{stage}-{uses}"
        if isinstance(spec, PostTrainSpec):
            name = title_of(stage, spec.label)
        steps[node.id] = Step(name, stage, before, spec, _cached(here, node, constants, made))
    return list(steps.values())


def _constants(context: FlyteContext, node: Node) -> dict[str, Any]:
    """The inputs that are known without running anything, as Python values: so they get their hashes again, which
    are lost when they are bound."""
    hints = node.flyte_entity.get_input_types()
    bound = {each.var: each.binding.scalar for each in node.bindings if each.binding.scalar is not None}
    return {
        name: TypeEngine.to_python_value(context, Literal(scalar=scalar), hints[name]) for name, scalar in bound.items()
    }


def _cached(context: FlyteContext, node: Node, constants: dict[str, Any], made: Made) -> str | None:
    """The digest of what the stage would take from the cache; None: it has to run, or one before it has."""
    task: StageTask = node.flyte_entity
    if not task.metadata.cache or any(parent not in made for parent in node.upstream_nodes):
        return None
    promises = {each.var: get_promise(each.binding, made) for each in node.bindings if each.var not in constants}
    inputs = translate_inputs_to_literals(
        context, constants | promises, task.interface.inputs, task.get_input_types() or {}
    )
    version, ignored = task.metadata.cache_version, task.metadata.cache_ignore_input_vars
    found = LocalTaskCache.get(task.name, version, LiteralMap(inputs), ignored)
    if found is None or not (artifact := _artifact(context, task, found)):
        return None
    made[node] = {name: Promise(name, literal) for name, literal in found.literals.items()}
    return artifact.digest


def _artifact(context: FlyteContext, task: StageTask, found: LiteralMap) -> Artifact | None:
    """The artifact, if its manifest is still there and the same. Its files are looked at by the run."""
    ((name, python_type),) = task.python_interface.outputs.items()
    try:
        artifact: Artifact = TypeEngine.to_python_value(context, found.literals[name], python_type)
        return artifact if artifact.manifest().digest == artifact.digest else None
    except (ValidationError, ArtifactError):
        return None
