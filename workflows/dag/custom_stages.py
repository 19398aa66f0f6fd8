"""The recipe's `stages`: what each is made of, and which are repeated with each seed."""

from collections.abc import Collection, Iterable, Iterator

from baton.tasks.core.seeds import label_of, without_seed
from baton.tasks.custom.spec import CustomSpec

EVALUATION = "evaluate-"  # begins the title of a model's evaluation
NOT_RESERVED = (
    "a name that does not end in -seed and a number, which is reserved for repetitions (`seeds`), nor begin with "
    f"{EVALUATION}, which is for evaluations"
)


def is_reserved(name: str) -> bool:
    """Return whether the name is reserved, so that no model or artifact may have it."""
    return name.startswith(EVALUATION) or without_seed(name) != name


def made_of(names: Iterable[str], stages: Collection[CustomSpec]) -> set[str]:
    """These names themselves, and those that the custom stages among them are made of. An evaluation counts as its
    model."""
    inputs = {stage.name: stage.inputs for stage in stages}
    found: set[str] = set()
    waiting = [*names]
    while waiting:
        name = waiting.pop().removeprefix(EVALUATION)
        if name not in found:
            found.add(name)
            waiting += inputs.get(name, ())
    return found


def of_each_seed(tuned: Collection[str], stages: Collection[CustomSpec]) -> set[str]:
    """The names of the models and artifacts that each seed has of its own: those tuned, and what is made of them."""
    return {*tuned, *(stage.name for stage in stages if not made_of(stage.inputs, stages).isdisjoint(tuned))}


def with_seed(name: str, repetition: int, seeded: Collection[str]) -> str:
    """Return the title of what has the name in a repetition of the post-training. `seeded`: see `of_each_seed`."""
    return label_of(name, repetition) if name.removeprefix(EVALUATION) in seeded else name


def stages_with_seeds(
    stages: Collection[CustomSpec], seeds: int, seeded: Collection[str]
) -> Iterator[tuple[CustomSpec, dict[str, str]]]:
    """The stages and their repetitions, each with its inputs: the names in the recipe, and those of its seed."""
    for repetition in range(seeds):
        for stage in stages:
            if repetition == 0 or stage.name in seeded:
                inputs = {name: with_seed(name, repetition, seeded) for name in stage.inputs}
                yield stage.model_copy(update={"name": label_of(stage.name, repetition)}), inputs
