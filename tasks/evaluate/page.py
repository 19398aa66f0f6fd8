"""The lineage page of an evaluation."""

from tasks.evaluate.results import read_results
from tasks.evaluate.samples import samples
from tasks.evaluate.scores import measured_on, score_bars, score_table, set_table
from tasks.pages.blocks import Block
from tasks.pages.source import Source


def evaluation(source: Source) -> list[Block]:
    results = [read_results(source.directory)]
    return [score_table(results), *measured_on(results), *set_table(results), *score_bars(results), *samples(results)]
