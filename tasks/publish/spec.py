"""The spec of publishing: the model's name, alias, what its card says, and its repository on the hub."""

import re

from pydantic import Field

from baton.infra.storage.hub import EXPECTED_NAME, NAME
from baton.tasks.core.spec import Problem, StageSpec, identity_if_set, not_identity

ALIAS = re.compile(r"(?!latest$|v\d+$)[\w-]{1,255}", re.IGNORECASE)  # as MLflow allows it
RESERVED = "latest and v1, v2, …, which are MLflow's own"


class PublishSpec(StageSpec):
    """The final model with its card, as a version in the MLflow model registry, and on the Hugging Face hub if `hub` is
    set."""

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

    hub: str | None = identity_if_set(
        None,
        "Repository on the Hugging Face hub to which the model is pushed with its card, such as my-team/my-model; "
        "created if it does not exist. The token is HF_TOKEN, or that of `hf auth login`",
    )
    private: bool = not_identity(
        True, "With hub: create a private repository, and refuse an existing public one; false: public ones too"
    )
    overwrite: bool = not_identity(
        False, "With hub: replace the files of a repository that Baton did not write, which is refused by default"
    )

    def problems(self) -> list[Problem]:
        problems = []
        if self.alias and not ALIAS.fullmatch(self.alias):
            problems.append(Problem("alias", self.alias, f"a name other than {RESERVED}"))
        if self.hub is None:
            problems += self.unused(("private", "overwrite"), "unset, or with publish.hub: it is about that repository")
        elif not NAME.fullmatch(self.hub):
            problems.append(Problem("hub", self.hub, EXPECTED_NAME))
        return problems
