"""The spec of choosing a run's best model."""

from pydantic import Field

from baton.tasks.core.spec import StageSpec, identity_if_set, not_identity


class ChooseSpec(StageSpec):
    """The best of the run's models by one metric of their evaluations."""

    metric: str = Field(description="Name of the metric: bits_per_byte, or an evaluator's, such as sums.right")
    before_tuning: bool = identity_if_set(False, "of one model alone, to check that the metric can select a model")
    field: str = not_identity("publish.best", "the recipe's field that names the metric, for messages")
