"""The base of every spec, and what a spec says when it is wrong.

A spec says *what the result is*. Field types and bounds are pydantic's; what spans several fields
is a `Problem` from `problems()`, so that everything wrong can be reported at once (a pydantic
model validator would not run while any field is wrong).
"""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a recipe, in words a person can act on."""

    path: str  # "pretrain.model.heads"
    value: Any  # what was given
    allowed: str  # what would be accepted, or how to get out

    def under(self, prefix: str) -> "Problem":
        """The same problem, seen from one level up."""
        return Problem(f"{prefix}.{self.path}" if self.path else prefix, self.value, self.allowed)

    def __str__(self) -> str:
        return f"{self.path}: {self.value!r}: {self.allowed}"


class Spec(BaseModel):
    """A typed, closed part of a recipe: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

    def problems(self) -> list[Problem]:
        """What is wrong across fields, with paths relative to this spec."""
        return []
