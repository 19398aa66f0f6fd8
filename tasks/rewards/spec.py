"""What a completion is worth, said in a recipe: a function of the user's or a built-in reward, with a weight.

rewards:
  - sums.py:right                                    # the same as {function: sums.py:right}
  - {function: sums.py:short, weight: 0.1}
  - math                                             # a built-in one with its defaults
  - {judge: {model: judge, rubric: …}, weight: 0.5, name: kind}
  - {diversity: {}, weight: 0.8}

spec.problems(); rewards_problems(specs)             what is wrong, before anything is run
spec.needs(columns)                                  what it lacks in rows with these columns
spec.as_found()                                      with the source of the function's files in it
"""

from collections.abc import Collection, Sequence
from typing import Any

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tasks.functions import Function
from tasks.rewards.builtin.builtin import Builtin
from tasks.rewards.builtin.diversity import Diversity
from tasks.rewards.builtin.format import Format
from tasks.rewards.builtin.json_schema import JsonSchema
from tasks.rewards.builtin.judge import Judge
from tasks.rewards.builtin.length import Length
from tasks.rewards.builtin.match import Match
from tasks.rewards.builtin.math import Math
from tasks.rewards.builtin.regex import Regex
from tasks.rewards.builtin.similarity import Similarity
from tasks.rewards.call import GIVEN
from tasks.spec import Problem, Spec

BUILTINS = ("math", "match", "regex", "json_schema", "length", "format", "similarity", "judge", "diversity")
_VERL = {"solution_str", "solution_strs", "data_source", "data_sources", "ground_truth", "ground_truths"}


class RewardSpec(Spec):
    """One reward: exactly one of `function` and the built-in ones."""

    function: Function | None = Field(None, description="yours: `file.py:function` or `package.module:function`")
    math: Math | None = Field(None, description="the answer is mathematically equal to the row's")
    match: Match | None = Field(None, description="the completion is the row's answer, to the letter")
    regex: Regex | None = Field(None, description="a regular expression is found, and finds the row's answer")
    json_schema: JsonSchema | None = Field(None, description="the completion is JSON that a schema allows")
    length: Length | None = Field(None, description="the completion is as long as it should be")
    format: Format | None = Field(None, description="the completion is made of tagged parts")
    similarity: Similarity | None = Field(None, description="how much of the row's answer the completion has")
    judge: Judge | None = Field(None, description="how good another model says that it is, by a rubric")
    diversity: Diversity | None = Field(
        None, description="how much it is an answer of its own; it scales the sum of the other rewards"
    )
    weight: float = Field(
        1.0, ge=-1000, le=1000, description="in the sum of all rewards; of diversity: how much of the sum it can take"
    )
    name: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][\w.-]*$",
        description="of its metric; by default the function's or the built-in's name",
    )
    gold: bool | None = Field(
        None,
        description="whether it must score the rows' own answers higher than shuffled ones; by default when it "
        "compares with a column of the rows",
    )
    timeout_s: float = Field(
        120.0, gt=0, le=86_400, description="longest time for one call with all completions of a step; seconds",
        json_schema_extra={"identity": False},
    )  # fmt: skip
    environment: list[str] = Field(
        [], description="names of the environment variables that the function may see, such as its key for a service",
        json_schema_extra={"identity": False},
    )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return {value: {}} if value in BUILTINS else {"function": value}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string"}, handler(core)]}

    @property
    def kind(self) -> str:
        """`function`, or the built-in's name."""
        return self._given()[0]

    @property
    def builtin(self) -> Builtin | None:
        return None if self.function else getattr(self, self.kind)

    @property
    def label(self) -> str:
        """The name of its metric."""
        return self.name or (self.function.attribute if self.function else self.kind)

    def as_found(self) -> "RewardSpec":
        """This with its function's source in it. Raises Stopped."""
        return self.model_copy(update={"function": self.function.as_found()}) if self.function else self

    def problems(self) -> list[Problem]:
        given = self._given()
        if len(given) != 1:
            allowed = f"exactly one of function, {', '.join(BUILTINS)}; this has {' and '.join(given) or 'none'}"
            return [Problem("", self.name, allowed)]
        found = [problem.under(self.kind) for problem in getattr(self, self.kind).problems()]
        if self.diversity and not 0 <= self.weight <= 1:
            found.append(
                Problem("weight", self.weight, "0 to 1: the part of the other rewards that diversity can take")
            )
        if self.diversity and self.gold:
            found.append(Problem("gold", self.gold, "nothing: diversity is about many answers, not about right ones"))
        return found + ([] if found or not self.function else self._signature(self.function))

    def needs(self, columns: Collection[str]) -> list[Problem]:
        """What it lacks in rows with these columns."""
        if self.builtin:
            lacking = self.builtin.needs(columns)
            return [Problem(self.kind, self.label, f"needs {lacking}")] if lacking else []
        found = self.function.definition() if self.function else None
        if found is None:
            return []
        wanted = [name for name in _required(found) if name not in GIVEN | _VERL | set(columns)]
        have = ", ".join(sorted(columns))
        return [
            Problem("function", self.label, f"takes {name}, which is no column of the rows: {have}") for name in wanted
        ]

    def _given(self) -> list[str]:
        return [name for name in ("function", *BUILTINS) if getattr(self, name) is not None]

    def _signature(self, function: Function) -> list[Problem]:
        """What cannot be called as a reward is, as far as its `def` shows."""
        found = function.definition()
        if found is None or found.args.kwarg or _parameters(found) & {"completions", "solution_str", "solution_strs"}:
            return []
        allowed = (
            f"a reward takes completions, and what else it wants of prompts, completion_ids and the rows' columns, or "
            f"**kwargs; or verl's solution_str and ground_truth. {function.attribute} (line {found.lineno}) takes "
            f"{', '.join(sorted(_parameters(found))) or 'nothing'}"
        )
        return [Problem("function", function.name, allowed)]


def rewards_problems(rewards: Sequence[RewardSpec]) -> list[Problem]:
    """What is wrong with each, and with all of them together; paths begin with the number of the reward."""
    found = [problem.under(str(index)) for index, reward in enumerate(rewards) for problem in reward.problems()]
    if found:
        return found
    seen: set[str] = set()
    for index, reward in enumerate(rewards):
        if reward.label in seen:
            allowed = f"names that differ: give one of the rewards called {reward.label} another `name`"
            found.append(Problem(f"{index}.name", reward.label, allowed))
        seen.add(reward.label)
    if rewards and all(reward.diversity for reward in rewards):
        found.append(
            Problem("", [each.label for each in rewards], "another reward beside diversity, which only scales")
        )
    return found


def _parameters(function: Any) -> set[str]:
    given = function.args
    return {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}


def _required(function: Any) -> list[str]:
    """The parameters without a default."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    plain = positional[: len(positional) - len(given.defaults)]
    named = [each for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
    return [each.arg for each in (*plain, *named)]
