"""Give a run a note and tags, which the pages and `baton runs` show and search.

\b
baton note ID "better than the last one"   replace the note; "" removes it
baton note ID --tag sweep=lr --tag keep    add tags
baton note ID --untag keep                 remove a tag
baton note ID                              show them

`baton gc` keeps what a run with a note or a tag has made.
"""

from collections.abc import Sequence
from pathlib import Path

import click

from baton.infra.errors import UserError
from baton.infra.text import clause, escaped
from baton.infra.tracking.annotations import annotate, checked_note, checked_tags, parse_tag
from baton.infra.tracking.mlflow_records import ANNOTATION_TAG, NOTE_TAG
from baton.infra.tracking.spool import execution_folder, is_alive, read_execution
from baton.infra.tracking.store import PushFailed, prepare_client, shown_uri, tracking_uri


class UnknownExecution(UserError):
    """Raised if no execution has an id."""


@click.command(help=__doc__)
@click.argument("execution", metavar="ID")
@click.argument("note", required=False)
@click.option("--tag", "tags", multiple=True, metavar="NAME=VALUE", help="Add a tag; repeatable. Without a value: yes.")
@click.option("--untag", "removed", multiple=True, metavar="NAME", help="Remove a tag; repeatable.")
def main(execution: str, note: str | None, tags: Sequence[str], removed: Sequence[str]) -> None:
    changed = dict(parse_tag(tag if "=" in tag else f"{tag}=yes") for tag in tags) | dict.fromkeys(removed, "")
    folder = execution_folder(execution)
    is_here = Path(execution).name == execution and (folder / "execution.json").exists()
    if note is None and not changed:
        _show(folder if is_here else None, execution)
    elif is_here:
        annotate(folder, note, changed)
        _deliver(folder)
    else:
        _annotate_remote(execution, note, changed)


def _show(folder: Path | None, execution: str) -> None:
    if folder is None:
        raise UnknownExecution(f"{execution}: no run on this machine has this id; `baton runs` lists them")
    known = read_execution(folder)
    click.echo(escaped(known.note or "no note"))
    for name, value in known.tags.items():
        if value:
            click.echo(escaped(f"{name}={value}"))


def _deliver(folder: Path) -> None:
    """Upload the changed record. A process that still works on the execution does so itself."""
    if is_alive(folder):
        return
    (folder / "delivered").unlink(missing_ok=True)
    prepare_client()
    from baton.infra.tracking.push import push_execution  # imports MLflow

    try:
        push_execution(folder)
    except PushFailed as error:
        click.echo(f"{shown_uri()}: {clause(error)}; the next run delivers the note", err=True)


def _annotate_remote(execution: str, note: str | None, tags: dict[str, str]) -> None:
    """Write the tags of an execution of another machine. Raises UnknownExecution, PushFailed."""
    prepare_client()
    from mlflow.exceptions import MlflowException

    from baton.infra.tracking.push import connect, runs_with
    from baton.infra.tracking.sqlite import require_store

    require_store(tracking_uri())

    if not all(one.isalnum() or one in "-_." for one in execution):
        raise UnknownExecution(f"{execution}: this is no id of a run; `baton runs` lists them")
    try:
        client = connect(tracking_uri())
        found = runs_with(client, {"baton.execution": execution, "baton.role": "execution"})
        if not found:
            raise UnknownExecution(f"{execution}: no run in {shown_uri()} has this id; `baton runs` lists them")
        changed = {f"{ANNOTATION_TAG}{name}": value for name, value in checked_tags(tags).items()}
        for name, value in (changed | ({} if note is None else {NOTE_TAG: checked_note(note)})).items():
            client.set_tag(found[0].info.run_id, name, value)
    except MlflowException as error:
        raise UserError(f"{shown_uri()}: {str(error)[:300]}") from error
