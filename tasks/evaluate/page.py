"""The lineage page of an evaluation."""

from baton.tasks.evaluate.results import read_results
from baton.tasks.evaluate.samples import samples
from baton.tasks.evaluate.scores import measured_on, overfits, score_bars, score_table, set_table
from baton.tasks.pages.blocks import Block
from baton.tasks.pages.source import Source


def evaluation(source: Source) -> list[Block]:
    results = [read_results(source.directory)]
    return [
        score_table(results),
        *overfits(results),
        *measured_on(results),
        *set_table(results),
        *score_bars(results),
        *samples(results),
    ]
