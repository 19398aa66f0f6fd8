"""Preparation and decontamination of rows as typed Flyte tasks."""

from baton import images
from baton.infra.process.launch import Engine
from baton.tasks.data.artifact import Corpus
from baton.tasks.rows.artifact import Rows
from baton.tasks.rows.spec import DecontaminateSpec, RowsSpec
from baton.tasks.run import run
from baton.tasks.stage import stage
from baton.tasks.stage_job import Reads

ROWS = Engine("rows", "baton.tasks.rows.rows", version="5")
DECONTAMINATE = Engine("decontaminate", "baton.tasks.rows.decontaminate", version="3")


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
