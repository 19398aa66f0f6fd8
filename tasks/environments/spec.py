"""The spec of the functions that a model can call while it answers: an environment, or tools without state.

    environment: shop.py:Shop      # a class in the shape of TRL's `environment_factory`
    tools: [tools.py:add]          # functions, as in TRL's `tools`

The environment is a class without arguments. `reset(**columns)` gets the row's columns and returns None, or text that
is appended to the last user message. Its other public methods are the tools. Type hints and a Google-style docstring
of each tool tell the model how to call it. `get_reward()`, if there is one, is added to the rewards.
"""

from baton.tasks.core.spec import Problem, Spec, identity_if_set
from baton.tasks.user_code.functions import FUNCTION, Function, same_names

TOOL_FIELDS = ("max_turns", "tool_timeout_s", "tool_memory_gb", "tool_variables")


class ToolUse(Spec):
    """The environment or the tools of a stage that samples from a model."""

    environment: Function | None = identity_if_set(
        None,
        "class with `reset` and methods that the model can call, one instance per completion (TRL's "
        f"environment_factory): {FUNCTION}",
    )
    tools: list[Function] = identity_if_set([], "functions that the model can call (TRL's tools)", max_length=64)
    max_turns: int = identity_if_set(
        8, "model's turns per completion; calls in the last one are run, but not answered", ge=1, le=1_000
    )
    tool_timeout_s: float = identity_if_set(
        30.0,
        "time limit of one call; the process of an environment that exceeds it is killed. Seconds",
        gt=0,
        le=86_400,
    )
    tool_memory_gb: float = identity_if_set(
        4.0, "memory of one completion's environment; beyond it, allocations fail. GB", gt=0, le=10_000
    )
    tool_variables: list[str] = identity_if_set(
        [],
        "environment variables visible to the environment and the tools, such as an API key. Their names identify "
        "a result, not their values",
    )

    def uses_tools(self) -> bool:
        return self.environment is not None or bool(self.tools)

    def tool_functions(self) -> dict[str, Function]:
        """Return the environment's class and the tools by their fields."""
        named = {f"tools.{number}": tool for number, tool in enumerate(self.tools)}
        return {"environment": self.environment, **named} if self.environment else named

    def tool_problems(self) -> list[Problem]:
        """Return problems with the files of the functions and, if there are no functions, fields that need them."""
        if not self.uses_tools():
            return self.unused(TOOL_FIELDS, "unset, since there are no tools and no environment")
        functions = self.tool_functions()
        problems = [problem.under(at) for at, function in functions.items() for problem in function.problems()]
        return [*problems, *same_names(functions)]
