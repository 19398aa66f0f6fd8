"""What a report is about."""

from pydantic import Field

from tasks.spec import StageSpec


class ReportSpec(StageSpec):
    """One report belongs to one execution: the execution's id is what tells it from another."""

    title: str = Field("Baton", min_length=1, max_length=200, description="the report's headline")
    execution: str = Field(
        "",
        pattern=r"^(\w[\w.-]*)?$",
        max_length=200,
        description="id of the execution whose stage times are shown; empty: times are left out",
    )
