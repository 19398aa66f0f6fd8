"""What a completion is worth, said in a recipe: a function of the user's or a built-in reward, with a weight.

    rewards:
      - sums.py:right                                    # the same as {function: sums.py:right}
      - {function: sums.py:short, weight: 0.1}
      - math                                             # a built-in one with its defaults
      - {judge: {model: judge, rubric: …}, weight: 0.5, name: kind}
      - {diversity: {}, weight: 0.8}

`rewards_problems(specs)` says what is wrong, without running any function; `spec.as_found()` has the source of the
function's files in it. What a function needs of the rows is known once it is imported: `Scorer.needs`.
"""

from collections.abc import Sequence
from typing import Any, Self

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tasks.functions import FUNCTION, Function
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
from tasks.spec import Problem, Spec

BUILTINS = ("math", "match", "regex", "json_schema", "length", "format", "similarity", "judge", "diversity")


MOST = 64  # rewards of one stage or evaluator: each is imported before any compute


class RewardSpec(Spec):
    """One reward: exactly one of `function` and the built-in ones."""

    function: Function | None = Field(None, description=f"yours: {FUNCTION}")
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
        [], description="names of environment variables that the function may see, such as a key or HTTPS_PROXY",
        json_schema_extra={"identity": False},
    )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value not in BUILTINS and ":" not in value:
            raise ValueError(f"{FUNCTION}, or one of {', '.join(BUILTINS)}")
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

    def as_found(self) -> Self:
        """This with its function's source in it. Raises Stopped."""
        return self.model_copy(update={"function": self.function.as_found()}) if self.function else self

    def problems(self) -> list[Problem]:
        given = self._given()
        if not self.is_one():
            allowed = f"exactly one of function, {', '.join(BUILTINS)}; this has {' and '.join(given) or 'none'}"
            return [Problem("", self.name, allowed)]
        found = [problem.under(self.kind) for problem in getattr(self, self.kind).problems()]
        if self.diversity and not 0 <= self.weight <= 1:
            found.append(
                Problem("weight", self.weight, "0 to 1: the part of the other rewards that diversity can take")
            )
        if self.diversity and self.gold:
            found.append(Problem("gold", self.gold, "nothing: diversity is about many answers, not about right ones"))
        return found

    def is_one(self) -> bool:
        """Whether it is exactly one of the kinds, and so has a name."""
        return len(self._given()) == 1

    def _given(self) -> list[str]:
        return [name for name in ("function", *BUILTINS) if getattr(self, name) is not None]


def rewards_problems(rewards: Sequence[RewardSpec]) -> list[Problem]:
    """What is wrong with each, and with all of them together; paths begin with the number of the reward."""
    found = [problem.under(str(index)) for index, reward in enumerate(rewards) for problem in reward.problems()]
    first: dict[str, int] = {}
    for index, reward in enumerate(rewards):
        if reward.is_one() and (other := first.setdefault(reward.label, index)) != index:
            allowed = f"a name of its own: rewards.{other} has the same one; give one of the two another `name:`"
            found.append(Problem(f"{index}.name", reward.label, allowed))
    if rewards and all(reward.diversity for reward in rewards):
        found.append(
            Problem("", [each.label for each in rewards], "another reward beside diversity, which only scales")
        )
    return found
