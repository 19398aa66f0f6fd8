"""Preparation and decontamination of rows as typed Flyte tasks."""

import images
from infra.process.launch import Engine
from tasks.data.artifact import Corpus
from tasks.rows.artifact import Rows
from tasks.rows.spec import DecontaminateSpec, RowsSpec
from tasks.run import run
from tasks.stage import stage
from tasks.stage_job import Reads

ROWS = Engine("rows", "tasks.rows.rows", version="5")
DECONTAMINATE = Engine("decontaminate", "tasks.rows.decontaminate", version="3")


@stage(ROWS, image=images.DATA)
def prepare_rows(spec: RowsSpec, corpora: list[Corpus]) -> Rows:
    """Read a source, validate its rows, drop duplicates, and split it by content. `corpora` has the corpus from which a
    function makes its rows, or is empty."""
    return run(ROWS, Rows, spec, corpora=corpora)


@stage(DECONTAMINATE, image=images.DATA)
def decontaminate(spec: DecontaminateSpec, rows: Rows, against: list[Rows]) -> Rows:
    """Drop the training rows whose prompt occurs in the held-out split of one of the other sets."""
    reads = Reads(files={"against": Rows.held_out_files})
    return run(DECONTAMINATE, Rows, spec, reads=reads, rows=rows, against=against)
