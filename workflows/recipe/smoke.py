"""A recipe cut to a few steps of each stage, to try everything that its run will touch within minutes.

The data, the shapes, batches, layouts, placements and rewards stay as they are, since these are what fails; corpora and
sets of rows are prepared in full, and the run that follows finds them in the cache.
"""

from typing import Any, TypeVar

from baton.tasks.core.spec import Spec
from baton.tasks.evaluate.spec import BitsSpec, EvaluatorSpec
from baton.tasks.posttrain.methods.dpo.spec import PairsSpec
from baton.tasks.posttrain.spec import PostTrainSpec
from baton.tasks.pretrain.optimizer_spec import OptimizerSpec
from baton.tasks.pretrain.spec import PretrainSpec
from baton.tasks.publish.spec import PublishSpec
from baton.tasks.serve.spec import LoadSpec
from baton.workflows.recipe import Recipe

R = TypeVar("R", bound=Recipe)

# the most that a field of these specs may have
MOST: dict[type[Spec], dict[str, int]] = {
    PretrainSpec: {"steps": 3, "validation_sequences": 8},
    OptimizerSpec: {"warmup_steps": 1, "wsd_decay_steps": 1},
    PostTrainSpec: {"steps": 2, "warmup_steps": 1},
    PairsSpec: {"prompts": 32},
    EvaluatorSpec: {"prompts": 8},
    BitsSpec: {"held_out_bytes": 20_000},
    LoadSpec: {"requests_per_client": 1, "least_requests": 4},
}
DOCUMENTS = 4  # of a task of lm-eval
SUFFIX = "-smoke"


def smoke(recipe: R) -> R:
    """Return the recipe for a smoke run. Its names have a suffix, so that it moves no alias and replaces no model."""
    cut: R = _cut(recipe)
    changes: dict[str, Any] = {"name": f"{cut.name[:57]}{SUFFIX}"}
    if cut.publish:
        changes["publish"] = _named(cut.publish)
    return cut.model_copy(update=changes)


def _named(publish: PublishSpec) -> PublishSpec:
    return publish.model_copy(update={"name": f"{publish.name[:94]}{SUFFIX}", "alias": None})


def _cut(part: Any) -> Any:
    if isinstance(part, list):
        return [_cut(each) for each in part]
    if isinstance(part, dict):
        return {name: _cut(each) for name, each in part.items()}
    if not isinstance(part, Spec):
        return part
    changes = {name: _cut(value) for name, value in part}
    for kind, most in MOST.items():
        if isinstance(part, kind):
            given = {name: changes[name] for name in most if changes[name] is not None}  # else it follows the others
            changes |= {name: min(value, most[name]) for name, value in given.items()}
    if isinstance(part, EvaluatorSpec) and part.lm_eval:
        changes["limit"] = min(part.limit or DOCUMENTS, DOCUMENTS)
    if isinstance(part, LoadSpec):
        changes["concurrency"] = part.concurrency[:2]
    if isinstance(part, PretrainSpec):
        changes["batch_warmup"] = None  # the full batch needs the most memory
    return part.model_copy(update=changes)
