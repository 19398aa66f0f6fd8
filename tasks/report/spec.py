"""The spec of a report."""

from pydantic import Field

from baton.tasks.core.spec import StageSpec


class ReportSpec(StageSpec):
    """A report of one execution, identified by its id."""

    title: str = Field("Baton", min_length=1, max_length=200, description="the report's headline")
    execution: str = Field(
        "",
        pattern=r"^(\w[\w.-]*)?$",
        max_length=200,
        description="id of the execution whose stage times are shown; empty: times are left out",
    )
