"""Compile a recipe's DAG without running it: its stages in order, and which of them are cached.

Flyte compiles the function that it would run, and each stage is looked up in Flyte's local cache under the key that
the run would use, so this module does not depend on which stages exist.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

from flytekit.core.context_manager import CompilationState, FlyteContext, FlyteContextManager
from flytekit.core.local_cache import LocalTaskCache
from flytekit.core.node import Node
from flytekit.core.promise import Promise, translate_inputs_to_literals
from flytekit.core.type_engine import TypeEngine
from flytekit.core.workflow import get_promise
from flytekit.models.literals import Literal, LiteralMap
from pydantic import ValidationError

from infra.tracking.relations import CONTAINS, MADE, RELATIONS
from tasks.artifacts import Artifact
from tasks.lacking import tolerated
from tasks.manifest import ArtifactError
from tasks.posttrain.spec import PostTrainSpec
from tasks.seeds import title_of
from tasks.spec import StageSpec
from tasks.stage import StageTask, is_gone
from workflows.pretrain_to_rl import dag
from workflows.recipe import Recipe

Outputs = dict[Node, dict[str, Promise]]  # of cached stages


@dataclass(frozen=True)
class Step:
    """One stage of the run."""

    name: str  # the stage's, "stage-2" for its second use; in post-training the model's, "sft seed 1" with seeds
    stage: str
    after: tuple[str, ...]
    spec: StageSpec
    cached: str | None  # the cached artifact's digest
    facts: dict[str, Any]  # and its facts


def steps_of(recipe: Recipe) -> list[Step]:
    """Every stage of the recipe, in topological order."""
    here = FlyteContextManager.current_context()
    compiling = here.with_compilation_state(CompilationState(prefix=""))
    with FlyteContextManager.with_context(compiling) as context:
        dag(recipe)
        state = context.compilation_state
    steps: dict[str, Step] = {}  # by the node's id
    outputs: Outputs = {}
    gone: list[Node] = []  # cached, without their files
    for node in state.nodes if state else ():
        stage = node.flyte_entity.task_config.engine.stage
        uses = 1 + sum(step.stage == stage for step in steps.values())
        upstream = {parent.id for parent in node.upstream_nodes}
        after = tuple(step.name for id, step in steps.items() if id in upstream)
        constants = _constants(here, node)
        spec = constants["spec"].joined(json.loads(constants["how"]))
        name = stage if uses == 1 else f"{stage}-{uses}"
        if isinstance(spec, PostTrainSpec):
            name = title_of(stage, spec.label)
        cached = _cached(here, node, constants, outputs)
        facts = cached.facts() if cached else {}
        steps[node.id] = Step(name, stage, after, spec, cached.digest if cached else None, facts)
        gone += [node] if cached and is_gone(cached.place) else []
    for node in reversed(gone):
        if _is_made_again(node, state.nodes if state else [], steps):
            steps[node.id] = replace(steps[node.id], cached=None)
    return list(steps.values())


def _is_made_again(node: Node, nodes: list[Node], steps: dict[str, Step]) -> bool:
    """Whether the run makes a cached artifact again whose files are gone (tasks/lacking.py): a stage that runs reads
    it, or nothing was made from it."""
    readers = [other for other in nodes if _inputs_from(node, other) - set(other.flyte_entity.task_config.describes)]
    if any(not steps[other.id].cached for other in readers):
        return True
    made = [other for other in readers if RELATIONS.get(_kind(other), MADE) in CONTAINS]
    return not made


def _inputs_from(node: Node, other: Node) -> set[str]:
    """The inputs of `other` that `node` is bound to."""
    return {binding.var for binding in other.bindings if node.id in _ids(binding.binding)}


def _ids(binding: Any) -> set[str]:
    """The nodes of a binding, of its list or its mapping."""
    if binding.promise is not None:
        return {binding.promise.node_id}
    inner = binding.collection.bindings if binding.collection else binding.map.bindings.values() if binding.map else ()
    return {id for one in inner for id in _ids(one)}


def _kind(node: Node) -> str:
    """The kind of artifact that a node makes."""
    (made,) = node.flyte_entity.python_interface.outputs.values()
    return str(made.kind)


def _constants(context: FlyteContext, node: Node) -> dict[str, Any]:
    """The constant inputs as Python values. Converting them again restores their hashes, which binding drops."""
    hints = node.flyte_entity.get_input_types()
    bound = {item.var: item.binding.scalar for item in node.bindings if item.binding.scalar is not None}
    return {
        name: TypeEngine.to_python_value(context, Literal(scalar=scalar), hints[name]) for name, scalar in bound.items()
    }


def _cached(context: FlyteContext, node: Node, constants: dict[str, Any], outputs: Outputs) -> Artifact | None:
    """The stage's cached artifact; None: the stage or one upstream has to run."""
    task: StageTask = node.flyte_entity
    if not task.metadata.cache or any(parent not in outputs for parent in node.upstream_nodes):
        return None
    promises = {item.var: get_promise(item.binding, outputs) for item in node.bindings if item.var not in constants}
    inputs = translate_inputs_to_literals(
        context, constants | promises, task.interface.inputs, task.get_input_types() or {}
    )
    version, ignored = task.metadata.cache_version, task.metadata.cache_ignore_input_vars
    found = LocalTaskCache.get(task.name, version, LiteralMap(inputs), ignored)
    if found is None or not (artifact := _artifact(context, task, found)):
        return None
    outputs[node] = {name: Promise(name, literal) for name, literal in found.literals.items()}
    return artifact


def _artifact(context: FlyteContext, task: StageTask, found: LiteralMap) -> Artifact | None:
    """The artifact, if its files are gone, or its manifest has the same digest. The run itself verifies the files."""
    ((name, python_type),) = task.python_interface.outputs.items()
    try:
        with tolerated():
            artifact: Artifact = TypeEngine.to_python_value(context, found.literals[name], python_type)
        intact = is_gone(artifact.place) or artifact.manifest().digest == artifact.digest
        return artifact if intact else None
    except (ValidationError, ArtifactError):
        return None
