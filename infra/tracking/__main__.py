"""`python -m infra.tracking status` says what waits in the spool; `… sync` delivers it, `… sync --all` everything
that is in the spool, into a new store if need be."""

from pathlib import Path

import click

from infra.tracking.redact import redact_text
from infra.tracking.spool import RecordDamaged, executions, is_alive, is_delivered, read_execution, settle
from infra.tracking.sqlite_file import store_file
from infra.tracking.store import PushFailed, check_reachable, prepare_client, shown_uri, tracking_hint, tracking_uri


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
def status() -> None:
    """Print where the runs are and which executions wait."""
    print(f"store    {shown_uri()}\nlook     {tracking_hint()}")
    waiting = undelivered()
    print(f"waiting  {len(waiting)} of {len(executions())} executions")
    for folder in waiting:
        execution = read_execution(folder)
        state = "at work" if is_alive(folder) else execution.status
        print(f"  {execution.id}  {execution.name}  {state}")


@main.command()
@click.option("--all", "everything", is_flag=True, help="What was delivered before too: the store is a new one.")
def sync(everything: bool) -> None:
    """Deliver every execution that waits; those at work deliver themselves. Executions of a Flyte cluster that are
    over and that nobody closed are closed. Exit code 1 when some still wait."""
    if failures := deliver(executions() if everything else undelivered(), anew=everything):
        raise click.ClickException(f"{failures} executions still wait for {shown_uri()}")
    close_what_is_over()


def close_what_is_over() -> None:
    """See flyte.py; a file is no cluster's store. Raises TrackingUnreachable."""
    if store_file(tracking_uri()):
        return
    prepare_client()
    from mlflow.exceptions import MlflowException

    from infra.tracking.flyte import close_ended
    from infra.tracking.push import connect

    check_reachable()
    try:
        for id in close_ended(connect(tracking_uri())):
            click.echo(f"{id}: over, and closed")
    except MlflowException as error:
        raise click.ClickException(f"{shown_uri()}: {redact_text(str(error))[:300]}") from error


def undelivered() -> list[Path]:
    """The folders of the executions of which MLflow does not have all."""
    return [folder for folder in executions() if not is_delivered(folder)]


def deliver(folders: list[Path], anew: bool = False) -> int:
    """Push executions, a line each; returns how many failed. `anew`: all of them again, and a store that is gone is
    made. Raises TrackingUnreachable."""
    prepare_client()
    from infra.tracking.push import push_execution  # imports MLflow

    if anew:
        from infra.tracking.sqlite import make_tables

        make_tables(tracking_uri(), anew=True)
    check_reachable()
    failures = 0
    for folder in folders:
        try:
            if not settle(folder):
                click.echo(f"{folder.name}: at work; it delivers itself")
                continue
            delivered = push_execution(folder, anew)
        except (PushFailed, RecordDamaged, OSError) as error:
            click.echo(f"{folder.name}: {error}", err=True)
            failures += 1
        else:
            click.echo(f"{folder.name}: {'delivered' if delivered else 'another process is delivering it'}")
    return failures


if __name__ == "__main__":
    main()
