"""The stages of rows: a source -> a set of rows; a set without what stands in other sets' held-out parts."""

import images
from infra.launch import Engine
from tasks.artifacts import Rows
from tasks.rows.spec import DecontaminateSpec, RowsSpec
from tasks.stage import run, stage

ROWS = Engine("rows", "tasks.rows.rows", version="1")
DECONTAMINATE = Engine("decontaminate", "tasks.rows.decontaminate", version="1")


@stage(ROWS, image=images.DATA)
def prepare_rows(spec: RowsSpec) -> Rows:
    """Read a source; check its rows; drop duplicates; split it by content."""
    return run(ROWS, Rows, spec)


@stage(DECONTAMINATE, image=images.DATA)
def decontaminate(spec: DecontaminateSpec, rows: Rows, against: list[Rows]) -> Rows:
    """The set without the rows to train on that stand in the held-out part of one of the others."""
    return run(DECONTAMINATE, Rows, spec, rows=rows, against=against)
