"""Show what takes space in the home folder, and remove what nothing needs.

\b
baton gc                            what would be removed, and how much
baton gc --delete                   remove it
baton gc --older-than 7d            what was not used for 7 days; by default 30
baton gc --kind hf_model            artifacts of a kind, or checkpoints, downloads, leftovers, unfinished
baton gc --run ID                   the artifacts that one run made

A removed artifact keeps its manifest and its record: it stays on the pages, and is recomputed if a stage needs its
files. Files stay that a champion or another alias, an accepted generation, a run with a note or tags, a run in
progress, or the report of the newest run of a recipe needs. By default registered models, artifacts from which nothing
was made, reports and evaluations stay too: name their kind or their run to remove them.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

import click

from baton.infra.errors import UserError
from baton.infra.paths import baton_home
from baton.infra.process.removal_lock import removal
from baton.infra.text import escaped, size
from baton.infra.tracking.spool import executions
from baton.workflows.gc.choice import FILES, Choice, Selection, chosen
from baton.workflows.gc.found import Item, found, freed
from baton.workflows.gc.needs import needs
from baton.workflows.gc.remove import remove_items

UNITS = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}  # seconds
MOST = 20  # items that are listed


def _age(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """`30d` in seconds."""
    if value is None:
        return None
    if not (match := re.fullmatch(r"([0-9]{1,5})([hdw])", value)):
        raise click.BadParameter(f"{value!r} is not an age such as 12h, 30d or 8w")
    return int(match[1]) * UNITS[match[2]]


@click.command(help=__doc__)
@click.option("--delete", is_flag=True, help="Remove the files. Without it, nothing is changed.")
@click.option("--older-than", "older_than_s", metavar="AGE", callback=_age, help="Not used for 12h, 30d, 8w.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only of this kind; repeatable.")
@click.option("--run", "runs", multiple=True, metavar="ID", help="Only what this run made; repeatable.")
@click.option("--all", "everything", is_flag=True, help=f"List everything that goes, not only the largest {MOST}.")
def main(delete: bool, older_than_s: float | None, kinds: Sequence[str], runs: Sequence[str], everything: bool) -> None:
    if unknown := {*runs} - {folder.name for folder in executions()}:
        raise UserError(f"--run {min(unknown)}: no run of {baton_home()} has this id; `baton runs` lists them")
    selection = Selection(older_than_s, runs, kinds)
    if delete:
        _delete(selection)
    else:
        _show(selection, everything)


def _choices(selection: Selection) -> list[Choice]:
    known = needs()
    items = found(known)
    present = {item.kind for item in items}
    if unknown := {*selection.kinds} - present - {*FILES}:
        raise UserError(f"--kind {min(unknown)}: the home has no such files, but {', '.join(sorted(present))}")
    return chosen(items, known, selection)


def _show(selection: Selection, everything: bool) -> None:
    """Print what each kind takes, and what would be removed."""
    choices = _choices(selection)
    click.echo(f"{baton_home()}\n\n{'kind':24}{'in all':>12}{'goes':>12}  the rest stays because")
    for kind in dict.fromkeys(each.item.kind for each in choices):
        of_kind = [each for each in choices if each.item.kind == kind]
        goes = [each.item for each in of_kind if not each.stays]
        total = freed(each.item for each in of_kind)
        reasons = dict.fromkeys(each.stays for each in of_kind if each.stays)
        why = "; ".join([*reasons][:2]) + (f"; {len(reasons) - 2} more" if len(reasons) > 2 else "")
        click.echo(escaped(f"{kind[:23]:24}{size(total):>12}{size(freed(goes)):>12}  {why}"))
    going = sorted((each.item for each in choices if not each.stays), key=lambda item: -freed([item]))
    if not going:
        click.echo("\nThere is nothing to remove.")
        return
    click.echo("\nwould be removed")
    for item in going if everything else going[:MOST]:
        when = datetime.fromtimestamp(item.used, UTC).strftime("%Y-%m-%d")
        click.echo(escaped(f"  {size(freed([item])):>10}  last used {when}  {item.kind}  {_name(item)}"))
    if len(going) > MOST and not everything:
        click.echo(f"  and {len(going) - MOST:,} more, which --all lists")
    click.echo(f"\n--delete removes them and frees {size(freed(going))}. Nothing was changed.")


def _delete(selection: Selection) -> None:
    """Remove what is chosen, and print what was freed. Exit code 1 if something could not be removed."""
    with removal():
        going = [each.item for each in _choices(selection) if not each.stays]
        before = freed(going)
        stayed = [(item, reason) for item, reason in remove_items(going) if reason]
        after = freed(going)
    for item, reason in stayed:
        click.echo(escaped(f"{_name(item)} stays: {reason}"), err=True)
    click.echo(f"removed {len(going) - len(stayed):,} of {len(going):,}, {size(max(0, before - after))}")
    if stayed:
        raise SystemExit(1)


def _name(item: Item) -> str:
    place = item.place.relative_to(baton_home()).as_posix()
    return f"{place} {item.digest[:12]}".rstrip()
