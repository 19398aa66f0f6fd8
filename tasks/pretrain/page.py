"""The lineage page of a Megatron checkpoint."""

from baton.infra.text import count, number, words
from baton.tasks.pages.about import facts_table
from baton.tasks.pages.blocks import Block, Cell, Fold, Table, Text
from baton.tasks.pages.source import Source
from baton.tasks.pages.training import training_curves


def checkpoint(source: Source) -> list[Block]:
    facts = source.manifest.fields
    return [
        Text(
            f"{count(facts['parameters'])} parameters, step {number(facts['step'])}, "
            f"{count(facts['tokens_seen'])} tokens seen, validation loss {facts['validation_loss']:.4f} nats per token."
        ),
        *training_curves(source),
        *_anomalies(source),
        Fold("All facts", [facts_table(source)]),
    ]


def _anomalies(source: Source) -> list[Block]:
    """Return a table of anomalous steps, if there were any."""
    rows: list[list[Cell]] = [
        [
            number(anomaly["step"]),
            anomaly["why"],
            words(anomaly["reaction"]),
            f"{anomaly['first']} to {anomaly['first'] + anomaly['count'] - 1}",
        ]
        for anomaly in source.record_lines("anomalies.jsonl")
    ]
    return [Table("Anomalous steps", ["step", "reason", "reaction", "samples"], rows, "rlll")] if rows else []
