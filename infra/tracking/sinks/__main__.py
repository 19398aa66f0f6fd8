"""`python -m baton.infra.tracking.sinks NAME` delivers the executions that the tracker NAME lacks. With
`--watch FOLDER`, it first delivers one that runs, until that one ends or standard input is closed."""

import sys
from pathlib import Path

import click

from baton.infra.process.logs import redact_tracebacks
from baton.infra.tracking.sinks import TRACKERS
from baton.infra.tracking.sinks.deliver import deliver_left_over, deliver_while_it_runs


@click.command(help=__doc__)
@click.argument("name", type=click.Choice([*TRACKERS]))
@click.option("--watch", type=click.Path(path_type=Path), help="Folder of an execution that runs.")
def main(name: str, watch: Path | None) -> None:
    redact_tracebacks()
    if watch:
        deliver_while_it_runs(name, watch)
    failures = deliver_left_over(name)
    sys.exit(1 if failures and not watch else 0)


if __name__ == "__main__":
    main()
