"""The spec of publishing: the model's name, alias, and what its card says."""

import re

from pydantic import Field

from baton.tasks.core.spec import Problem, StageSpec, identity_if_set

ALIAS = re.compile(r"(?!latest$|v\d+$)[\w-]{1,255}", re.IGNORECASE)  # as MLflow allows it
RESERVED = "latest and v1, v2, …, which are MLflow's own"


class PublishSpec(StageSpec):
    """The final model with its card, as a version in the MLflow model registry."""

    name: str = Field(
        "baton",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$",
        description="Name in the model registry and on the card",
    )
    best: str | None = identity_if_set(
        None,
        "Metric by which the best single model of the run, of any stage and seed, is chosen to be served "
        "and published: bits_per_byte, or an evaluator's such as sums.right; null: the last stage's, of the first seed",
    )
    alias: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_-]{1,99}$",
        description="Registry alias to move to this version, such as champion",
    )
    description: str = Field("", max_length=5_000, description="What the model is, for the card; Markdown")
    license: str | None = Field(
        None,
        pattern=r"^[a-z0-9][a-z0-9.+-]*$",
        description="License of the weights, in the hub's spelling, such as apache-2.0; null: that of the model that "
        "the run started from, as its card says it, else none is named",
    )

    def problems(self) -> list[Problem]:
        if self.alias and not ALIAS.fullmatch(self.alias):
            return [Problem("alias", self.alias, f"a name other than {RESERVED}")]
        return []
