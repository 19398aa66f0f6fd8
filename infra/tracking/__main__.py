"""`baton tracking status` lists undelivered executions in the spool; `… sync` delivers them, `… sync --all`
every execution in the spool, to a new store if necessary."""

from pathlib import Path

import click

from baton.infra.process.process_group import stop_group
from baton.infra.tracking.redact import redact_text
from baton.infra.tracking.sinks import TRACKERS
from baton.infra.tracking.sinks.deliver import forget, waiting_for
from baton.infra.tracking.sinks.process import reason_of, start_delivery
from baton.infra.tracking.spool import RecordDamaged, close_if_idle, executions, is_alive, is_delivered, read_execution
from baton.infra.tracking.sqlite_file import store_file
from baton.infra.tracking.store import (
    PushFailed,
    check_reachable,
    prepare_client,
    shown_uri,
    tracking_hint,
    tracking_uri,
)


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
def status() -> None:
    """Print where the runs are stored, and which executions MLflow and the trackers beside it lack."""
    print(f"store    {shown_uri()}\nlook     {tracking_hint()}")
    waiting = undelivered()
    print(f"waiting  {len(waiting)} of {len(executions())} executions")
    for folder in waiting:
        execution = read_execution(folder)
        state = "running" if is_alive(folder) else execution.status
        print(f"  {execution.id}  {execution.name}  {state}")
    for name, tracker in TRACKERS.items():
        if lacking := waiting_for(name):
            print(f"{name} lacks {', '.join(folder.name for folder in lacking)}; look: {tracker.look}")


@main.command()
@click.option("--all", "everything", is_flag=True, help="Also send what was delivered before, for a new store.")
def sync(everything: bool) -> None:
    """Deliver every undelivered execution; running ones deliver themselves. Then close executions of a Flyte cluster
    that have ended without being closed. Exit code 1 if some could not be delivered."""
    lacking = deliver_to_trackers(resend=everything)
    if failures := deliver(executions() if everything else undelivered(), resend=everything):
        raise click.ClickException(f"{failures} executions could not be delivered to {shown_uri()}")
    close_ended_executions()
    if lacking:
        raise click.ClickException(f"{', '.join(lacking)}: not all executions could be delivered")


def deliver_to_trackers(resend: bool) -> list[str]:
    """Deliver what the trackers beside MLflow lack, each in a process of its own; returns the names of those that could
    not get it. `resend`: send everything again."""
    if resend:
        for folder in executions():
            forget(folder)
    lacking = []
    for name in TRACKERS:
        if waiting := waiting_for(name):
            log = waiting[-1] / f"{name}.log"
            process = start_delivery(name, log)
            try:
                is_delivered = process.wait() == 0
            finally:
                stop_group(process)
            rest = ", except for what still runs" if is_delivered and waiting_for(name) else ""
            click.echo(f"{name}: {f'delivered{rest}' if is_delivered else reason_of(log)}", err=not is_delivered)
            lacking += [] if is_delivered else [name]
    return lacking


def close_ended_executions() -> None:
    """Close ended executions of a Flyte cluster (infra/flyte/executions.py), unless the store is a file, which no
    cluster uses. Raises TrackingUnreachable."""
    if store_file(tracking_uri()):
        return
    prepare_client()
    from mlflow.exceptions import MlflowException

    from baton.infra.flyte.executions import close_ended
    from baton.infra.tracking.push import connect

    check_reachable()
    try:
        for id in close_ended(connect(tracking_uri())):
            click.echo(f"{id}: has ended; closed")
    except MlflowException as error:
        raise click.ClickException(f"{shown_uri()}: {redact_text(str(error))[:300]}") from error


def undelivered() -> list[Path]:
    """The folders of executions that are not completely in MLflow."""
    return [folder for folder in executions() if not is_delivered(folder)]


def deliver(folders: list[Path], resend: bool = False) -> int:
    """Upload executions and print a line for each; returns how many failed. `resend`: upload everything again, and
    create a missing store. Raises TrackingUnreachable."""
    prepare_client()
    from baton.infra.tracking.push import push_execution  # imports MLflow

    if resend:
        from baton.infra.tracking.sqlite import make_tables

        make_tables(tracking_uri(), recreate=True)
    check_reachable()
    failures = 0
    for folder in folders:
        try:
            if not close_if_idle(folder):
                click.echo(f"{folder.name}: running; it delivers itself")
                continue
            delivered = push_execution(folder, resend)
        except (PushFailed, RecordDamaged, OSError) as error:
            click.echo(f"{folder.name}: {error}", err=True)
            failures += 1
        else:
            click.echo(f"{folder.name}: {'delivered' if delivered else 'another process is delivering it'}")
    return failures


if __name__ == "__main__":
    main()
