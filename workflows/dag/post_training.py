"""The recipe's `post_training`: any methods in any order, each starting from any earlier model."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field, create_model

from baton.tasks.core.seeds import label_of
from baton.tasks.core.spec import Problem, Spec
from baton.tasks.custom.spec import CustomSpec
from baton.tasks.evaluate.spec import EvaluateSpec
from baton.tasks.posttrain.adapter_spec import MOST_SERVED
from baton.tasks.posttrain.methods import METHODS
from baton.tasks.posttrain.spec import PostTrainSpec
from baton.tasks.rewards.call import ENVIRONMENTS
from baton.tasks.rewards.spec import RewardSpec
from baton.workflows.dag.custom_stages import NOT_RESERVED, is_reserved, made_of, with_seed

BASE = "base"  # the model that the first stage starts from
CHAMPION = "champion"  # the model that a night's candidate is compared with
_fields: dict[str, Any] = {
    name: (spec | None, Field(None, description=str(spec.__doc__).partition(".")[0])) for name, spec in METHODS.items()
}
_Methods: Any = create_model("_Methods", __base__=Spec, **_fields)


class Tuning(_Methods):  # type: ignore[misc]
    """One post-training stage: exactly one of the methods."""

    name: str | None = Field(
        None,
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="Name of the tuned model; null: the stage's, with a number from its second use on",
    )
    start_from: str | None = Field(
        None,
        description=f"Name of an earlier model, `{BASE}` for the untuned one, or of one of `stages` that is made of "
        "earlier ones; null: the previous stage's",
    )

    def given(self) -> list[str]:
        """The methods that are set."""
        return [name for name in METHODS if getattr(self, name)]

    @property
    def stage(self) -> str:
        (name,) = self.given()
        return name

    @property
    def spec(self) -> PostTrainSpec:
        spec: PostTrainSpec = getattr(self, self.stage)
        return spec

    def problems(self) -> list[Problem]:
        if len(given := self.given()) != 1:
            return [Problem("", given, f"exactly one of {', '.join(METHODS)}; make another one its own list item")]
        return [problem.under(self.stage) for problem in self.spec.problems()]


@dataclass(frozen=True)
class ResolvedStage:
    """A stage of the list, with its name and starting model resolved."""

    path: str  # in the recipe, with the method
    stage: str
    spec: PostTrainSpec
    name: str
    start_from: str


def steps(tunings: list[Tuning]) -> Iterator[ResolvedStage]:
    """The list's valid items, in order."""
    uses: dict[str, int] = {}
    before = BASE
    for number, tuning in enumerate(tunings):
        if len(tuning.given()) != 1:
            continue
        uses[tuning.stage] = uses.get(tuning.stage, 0) + 1
        name = tuning.name or (tuning.stage if uses[tuning.stage] == 1 else f"{tuning.stage}-{uses[tuning.stage]}")
        spec = tuning.spec.model_copy(update={"label": name})
        yield ResolvedStage(
            f"post_training.{number}.{tuning.stage}", tuning.stage, spec, name, tuning.start_from or before
        )
        before = name


def repeated(tunings: list[Tuning], seeds: int, seeded: Collection[str]) -> Iterator[ResolvedStage]:
    """The steps, repeated with each further seed; every repetition starts from the same base. `seeded`: the names of
    which each has one of its own (`of_each_seed`)."""
    for extra in range(seeds):
        for step in steps(tunings):
            name, start = label_of(step.name, extra), with_seed(step.start_from, extra, seeded)
            spec = step.spec.model_copy(update={"seed": step.spec.seed + extra, "label": name})
            yield replace(step, spec=spec, name=name, start_from=start)


def names_problems(tunings: list[Tuning], stages: Collection[CustomSpec]) -> Iterator[Problem]:
    """Names are unique, none looks like a repetition's, and each stage starts from an earlier model, or from a custom
    stage's that is made of earlier ones."""
    known, every = [BASE], [*steps(tunings)]
    for number, step in enumerate(every):
        at = step.path.rpartition(".")[0]
        if step.name in (taken := [*known, CHAMPION]):
            yield Problem(f"{at}.name", step.name, f"another name than {', '.join(taken)}")
        if is_reserved(step.name):
            yield Problem(f"{at}.name", step.name, NOT_RESERVED)
        later = {other.name for other in every[number:]}
        needs = {stage.name: later & made_of([stage.name], stages) for stage in stages if stage.makes == "model"}
        allowed = [*known, *(name for name, missing in needs.items() if not missing)]
        if step.start_from not in allowed:
            missing = ", ".join(sorted(needs.get(step.start_from, ())))
            why = f"; {step.start_from} is made of {missing}: not there before {step.name}" if missing else ""
            yield Problem(f"{at}.start_from", step.start_from, f"one of {', '.join(allowed)}{why}")
        known.append(step.name)


def rank_problems(tunings: list[Tuning]) -> Iterator[Problem]:
    """An adapter that is trained on another becomes one with it, whose rank is the sum of both; vLLM serves it."""
    ranks = {BASE: 0}  # of the models; 0: a whole one
    for step in steps(tunings):
        adapter, before = step.spec.adapter, ranks.get(step.start_from, 0)
        alone = adapter is not None and adapter.output == "adapter"
        rank = adapter.lora.rank if adapter and alone else 0
        ranks[step.name] = before + rank if alone else 0
        if rank <= MOST_SERVED < before + rank and before <= MOST_SERVED:
            allowed = (
                f"at most {MOST_SERVED}, which vLLM serves, together with the rank {before} of {step.start_from}, an "
                "adapter too: both become one. Lower one of them, or set output: merged here"
            )
            yield Problem(f"{step.path}.adapter.lora.rank", rank, allowed)


def reward_lists(
    tunings: Iterable[ResolvedStage], evaluate: EvaluateSpec | None
) -> Iterator[tuple[str, str, Sequence[RewardSpec], set[str]]]:
    """(path, set of rows, rewards, columns that they get beside the rows') of each list of rewards that is not used by
    a placed stage."""
    for step in tunings:
        if step.spec.placement:
            continue
        for each in step.spec.reward_lists():
            given = {ENVIRONMENTS} if each.has_environment else set()
            yield f"{step.path}.{each.field}", step.spec.data, each.rewards, given
    if evaluate and not evaluate.placement:
        for name, evaluator in evaluate.evaluators().items():
            given = {ENVIRONMENTS} if evaluator.environment else set()
            yield f"evaluate.{name}.rewards", evaluator.data or "", evaluator.rewards, given
