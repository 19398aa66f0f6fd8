"""The spec of a custom stage: a user's function, its input artifacts, and its own settings.

    stages:
      - name: merged
        stage: merge.py:merge          # or a name among the entry points `baton.stages` of installed packages
        inputs: [sft, dpo]
        spec: {weights: [0.3, 0.7]}

    def merge(spec: MergeSpec, inputs: dict[str, Path], output: Path, job: Job) -> None: ...

The function's first argument is annotated with a pydantic model, against which `spec` is validated. `inputs` are the
artifacts' verified folders in the recipe's order, and `output` is an empty folder. A stage that makes an artifact other
than a model returns the artifact's facts.
"""

from importlib.metadata import entry_points
from typing import Any, Literal, Self

from pydantic import Field

from baton.infra.errors import UserError
from baton.tasks.core.json_data import JsonObject
from baton.tasks.core.spec import Problem, StageSpec, not_identity
from baton.tasks.user_code.functions import FUNCTION, NAME, Function

GROUP = "baton.stages"  # group of entry points


class CustomSpec(StageSpec):
    """A stage of your own: a Python function that makes a model or another artifact from artifacts of the run."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="Its title, and its model's name in evaluations and reports"
    )
    stage: str = Field(
        pattern=rf"({NAME})|^[A-Za-z0-9][A-Za-z0-9_-]*$",
        description=f"{FUNCTION}, or a name among the entry points `{GROUP}` of installed packages",
    )
    inputs: list[str] = Field(
        min_length=1,
        max_length=100,
        description="Models by name (base, sft, …), others by their stage's title; none that is made of this one",
    )
    makes: Literal["model", "artifact"] = Field(
        "model", description="model: a Hugging Face folder, which is evaluated; artifact: any files, with facts"
    )
    hours: float | None = not_identity(
        None, "Hours that it takes, for the plan's times and costs; null: not known", gt=0, le=1e5
    )
    memory_gb: float | None = not_identity(
        None,
        "Memory that it takes, which the plan shows and its pod asks for, GB; null: the pod's default",
        gt=0,
        le=1e6,
    )
    spec: JsonObject = Field({}, description="The stage's own fields, as the function's first argument has them")
    function: Function | None = Field(None, description="the function that `stage` names; filled in by Baton")

    def expected_hours(self) -> float | None:
        return self.hours

    def memory(self) -> int:
        return int(1e9 * (self.memory_gb or 0))

    def memory_text(self) -> str:
        return f"{self.memory_gb:g} GB (memory_gb)" if self.memory_gb else ""

    def identity(self) -> dict[str, Any]:
        return super().identity() | ({"stage": self.function.identity()["name"]} if self.function else {})

    def split_options(self) -> tuple[Self, dict[str, Any]]:
        spec, options = super().split_options()
        if spec.function is None or spec.function.name == spec.stage:
            return spec, options
        return spec.model_copy(update={"stage": spec.function.name}), options | {"stage": self.stage}

    def problems(self) -> list[Problem]:
        twice = sorted({name for name in self.inputs if self.inputs.count(name) > 1})
        return [Problem("inputs", name, "each input once") for name in twice]

    def pinned(self) -> Self:
        """Return a copy with the function's current source, or its package's version. Raises UserError."""
        if self.function:
            return self
        if not (named := self.named()):
            raise UserError(f"stages: {self.name}: no installed package has an entry point {self.stage} in {GROUP}")
        function = named.pinned()
        return self.model_copy(update={"stage": function.name, "function": function})  # no path

    def named(self) -> Function | None:
        """Return the function; None if no installed package has its entry point."""
        if self.function:
            return self.function
        points = entry_points(group=GROUP, name=self.stage)
        name = self.stage if ":" in self.stage else next((point.value for point in points), None)
        return Function(name=name) if name else None
