"""The recipe's `post_training`: any stages, in any order, each from any model before it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pydantic import Field

from tasks.dpo.spec import DPOSpec
from tasks.grpo.spec import GRPOSpec
from tasks.posttrain.spec import PostTrainSpec
from tasks.seeds import label_of, without_seed
from tasks.sft.spec import SFTSpec
from tasks.spec import Problem, Spec

BASE = "base"  # the model that the first stage starts from
STAGES = ("sft", "dpo", "grpo")


class Tuning(Spec):
    """One post-training stage: exactly one of `sft`, `dpo` and `grpo`."""

    sft: SFTSpec | None = Field(None, description="Supervised fine-tuning with TRL")
    dpo: DPOSpec | None = Field(None, description="Direct preference optimization with TRL")
    grpo: GRPOSpec | None = Field(None, description="Reinforcement learning with TRL and live vLLM rollouts")
    name: str | None = Field(
        None,
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="Name of the model that is made; null: the stage's, and a number for its second use",
    )
    start_from: str | None = Field(
        None, description=f"Name of an earlier model, `{BASE}` for the one before all; null: the one before this stage"
    )

    def given(self) -> list[str]:
        """Which of the three it is, if it is one."""
        return [name for name in STAGES if getattr(self, name)]

    @property
    def stage(self) -> str:
        (name,) = self.given()
        return name

    @property
    def spec(self) -> PostTrainSpec:
        found: PostTrainSpec = getattr(self, self.stage)
        return found

    def problems(self) -> list[Problem]:
        if len(given := self.given()) != 1:
            return [Problem("", given, f"exactly one of {', '.join(STAGES)}; another one is another item of the list")]
        return [problem.under(self.stage) for problem in self.spec.problems()]


@dataclass(frozen=True)
class Step:
    """A stage of the list, with its names filled in."""

    path: str  # "post_training.0.sft"
    stage: str
    spec: PostTrainSpec
    name: str
    start_from: str


def steps(tunings: list[Tuning]) -> Iterator[Step]:
    """The list's items that are one stage, in their order."""
    uses: dict[str, int] = {}
    before = BASE
    for number, each in enumerate(tunings):
        if len(each.given()) != 1:
            continue
        uses[each.stage] = uses.get(each.stage, 0) + 1
        name = each.name or (each.stage if uses[each.stage] == 1 else f"{each.stage}-{uses[each.stage]}")
        spec = each.spec.model_copy(update={"label": name})
        yield Step(f"post_training.{number}.{each.stage}", each.stage, spec, name, each.start_from or before)
        before = name


def repeated(tunings: list[Tuning], seeds: int) -> Iterator[Step]:
    """The steps, and all of them again with each further seed: each repetition starts from the same base."""
    for extra in range(seeds):
        for step in steps(tunings):
            name = label_of(step.name, extra)
            start = step.start_from if step.start_from == BASE else label_of(step.start_from, extra)
            spec = step.spec.model_copy(update={"seed": step.spec.seed + extra, "label": name})
            yield replace(step, spec=spec, name=name, start_from=start)


def names_problems(tunings: list[Tuning]) -> list[Problem]:
    """Names are each one's own, none is one of a repetition, and what a stage starts from comes before it."""
    found, known = [], [BASE]
    for step in steps(tunings):
        at = step.path.rpartition(".")[0]
        if step.name in known:
            found.append(Problem(f"{at}.name", step.name, f"another name than {', '.join(known)}"))
        if without_seed(step.name) != step.name:
            allowed = "a name without -seed and a number at its end, which are of the repetitions that `seeds` asks for"
            found.append(Problem(f"{at}.name", step.name, allowed))
        if step.start_from not in known:
            found.append(Problem(f"{at}.start_from", step.start_from, f"one of {', '.join(known)}"))
        known.append(step.name)
    return found
