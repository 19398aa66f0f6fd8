"""Spec of a reward, which is a user's function or a built-in reward, with a weight.

    rewards:
      - sums.py:right                                    # the same as {function: sums.py:right}
      - {function: sums.py:short, weight: 0.1}
      - math                                             # a built-in reward with its defaults
      - {judge: {model: judge, rubric: …}, weight: 0.5, name: kind}
      - {diversity: {}, weight: 0.8}

`rewards_problems(specs)` validates without running any function; `spec.pinned()` embeds the source of the function's
or program's files. The columns that a function needs are known once it is imported (`Scorer.needs`).
"""

from collections.abc import Sequence
from typing import Any

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from baton.tasks.core.spec import Problem, Spec, identity_if_set, not_identity
from baton.tasks.rewards.builtin.builtin import Builtin
from baton.tasks.rewards.builtin.code_tests import CodeTests
from baton.tasks.rewards.builtin.diversity import Diversity
from baton.tasks.rewards.builtin.format import Format
from baton.tasks.rewards.builtin.json_schema import JsonSchema
from baton.tasks.rewards.builtin.judge import Judge
from baton.tasks.rewards.builtin.length import Length
from baton.tasks.rewards.builtin.match import Match
from baton.tasks.rewards.builtin.math import Math
from baton.tasks.rewards.builtin.program import Verifier
from baton.tasks.rewards.builtin.python_output import PythonOutput
from baton.tasks.rewards.builtin.regex import Regex
from baton.tasks.rewards.builtin.similarity import Similarity
from baton.tasks.user_code.functions import FUNCTION, Function

BUILTINS = (
    "math", "match", "regex", "json_schema", "length", "format", "similarity", "judge", "diversity", "code_tests",
    "python_output", "program",
)  # fmt: skip
MOST = 64  # rewards of one stage or evaluator, since each is imported before any computation


class RewardSpec(Spec):
    """One reward, which is `function` or exactly one built-in reward."""

    function: Function | None = Field(None, description=f"your function: {FUNCTION}")
    math: Math | None = Field(None, description="the answer is mathematically equal to the row's")
    match: Match | None = Field(None, description="the completion equals the row's answer exactly")
    regex: Regex | None = Field(None, description="a regular expression matches, and captures the row's answer")
    json_schema: JsonSchema | None = Field(None, description="the completion is JSON that conforms to a schema")
    length: Length | None = Field(None, description="the completion's length is within bounds")
    format: Format | None = Field(None, description="the completion consists of tagged sections")
    similarity: Similarity | None = Field(None, description="similarity to the row's answer")
    judge: Judge | None = Field(None, description="another model's score by a rubric")
    diversity: Diversity | None = Field(
        None, description="how distinct the completion is; it scales the sum of the other rewards"
    )
    code_tests: CodeTests | None = Field(None, description="the program in the completion passes the row's tests")
    python_output: PythonOutput | None = Field(
        None, description="the program in the completion prints the row's answer"
    )
    program: Verifier | None = Field(None, description="a program of yours scores the completion, in a sandbox")
    weight: float = Field(
        1.0, ge=-1000, le=1000, description="weight in the sum of rewards; diversity: largest fraction to take away"
    )
    name: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][\w.-]*$",
        description="name of the reward's metric; null: the name of the function or of the built-in reward",
    )
    gold: bool | None = Field(
        None,
        description="whether the reward must score the rows' own answers higher than shuffled ones; null: yes if it "
        "compares with a column of the rows",
    )
    timeout_s: float = not_identity(
        120.0, "time limit of one call with all completions of a step; seconds", gt=0, le=86_400
    )
    memory_gb: float = not_identity(
        4.0,
        "memory of each process of the function; beyond it, allocations fail. The largest value of a file's rewards "
        "applies. GB",
        gt=0,
        le=10_000,
    )
    environment: list[str] = identity_if_set(
        [],
        "environment variables visible to the function, such as an API key or HTTPS_PROXY. Their names identify a "
        "result, not their values: if these change scores, use another `name` to score again",
    )

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
        """`function`, or the name of the built-in reward."""
        return self._given()[0]

    @property
    def builtin(self) -> Builtin | None:
        return None if self.function else getattr(self, self.kind)

    @property
    def label(self) -> str:
        """Name of the reward's metric."""
        return self.name or (self.function.attribute if self.function else self.kind)

    def problems(self) -> list[Problem]:
        given = self._given()
        if not self.is_one():
            allowed = f"exactly one of function, {', '.join(BUILTINS)}; got {' and '.join(given) or 'none'}"
            return [Problem("", self.name, allowed)]
        problems = [problem.under(self.kind) for problem in getattr(self, self.kind).problems()]
        if self.diversity and not 0 <= self.weight <= 1:
            allowed = "0 to 1: the largest fraction of the other rewards that diversity can take away"
            problems.append(Problem("weight", self.weight, allowed))
        if self.diversity and self.gold:
            problems.append(Problem("gold", self.gold, "null: diversity does not measure correctness"))
        return problems

    def is_one(self) -> bool:
        """Return whether exactly one kind of reward is given, so that there is a label."""
        return len(self._given()) == 1

    def _given(self) -> list[str]:
        return [name for name in ("function", *BUILTINS) if getattr(self, name) is not None]


def tried_field() -> Any:
    """Return the field of a stage that records whether its rewards have been tried."""
    return not_identity(False, "Whether the rewards have been tried on the rows' own answers; filled in by Baton")


def rewards_problems(rewards: Sequence[RewardSpec]) -> list[Problem]:
    """Validate each reward and their combination; paths begin with the reward's index."""
    problems = [problem.under(str(index)) for index, reward in enumerate(rewards) for problem in reward.problems()]
    first: dict[str, int] = {}
    for index, reward in enumerate(rewards):
        # Case is ignored, since the database of an MLflow server may not distinguish upper and lower case
        if reward.is_one() and (other := first.setdefault(reward.label.lower(), index)) != index:
            allowed = f"a unique name: rewards.{other} has the same name; set `name:` of one of them"
            problems.append(Problem(f"{index}.name", reward.label, allowed))
    if rewards and all(reward.diversity for reward in rewards):
        labels = [reward.label for reward in rewards]
        problems.append(Problem("", labels, "another reward beside diversity, which only scales the others"))
    return problems
