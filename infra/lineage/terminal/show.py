"""Show a run or an artifact, as on its page.

\b
baton show last                     the newest run; or a run by its id, or the beginning of it
baton show c08825ab                 an artifact by its digest, or the first 6 characters of it
baton show my-model                 the champion of a registered model, else its newest version; my-model@previous and
                                    my-model/3 name others
"""

import click
import yaml

from baton.infra.lineage.database import open_database
from baton.infra.lineage.pages import MOUNT, Page, Pages
from baton.infra.lineage.terminal.resolve import artifact_of, execution_of
from baton.infra.lineage.terminal.text import (
    json_option,
    line,
    pairs,
    print_json,
    section,
    store_option,
    table,
    tags_of,
    when,
)
from baton.infra.text import brief, duration, escaped, measure, size, words

MOST = 20  # rows of a table
PLACES = {
    "here": "on this machine",
    "removed": "removed by baton gc; recomputed if a stage needs it",
    "gone": "missing: moved or deleted",
    "changed": "replaced by another artifact",
    "elsewhere": "not in this machine's Baton home",
    "unknown": "location not recorded",
}


@click.command(help=__doc__)
@click.argument("name")
@json_option
@store_option
def main(name: str, is_json: bool, store: str | None) -> None:
    pages = Pages(open_database(store), MOUNT)
    pages.graph.refresh()
    id = execution_of(pages, name)
    page = pages.execution(id, {}) if id else pages.artifact(artifact_of(pages, name), {})
    if is_json:
        print_json(page)
    elif id:
        _show_execution(page)
    else:
        _show_artifact(page)


def _show_execution(page: Page) -> None:
    click.echo(table([(page["name"], page["status"].lower(), page["id"])])[0])
    if page["error"]:
        click.echo(escaped(page["error"]))
    best, left = page["best"], page["left"]
    facts = [
        ("note", page["note"]),
        ("tags", tags_of(page)),
        ("user", page["user"]),
        ("started", f"{when(page['started'])} UTC"),
        ("took", duration(page["duration_s"])),
        ("left", brief(left["seconds"]) if left else None),
        ("cost", None if page["cost_usd"] is None else f"${page['cost_usd']:.2f}"),
        ("best", f"{best['name']} {measure(best['value'], best['unit'])}, {best['model']}" if best else None),
        ("code", page["code"].get("commit", "")[:12]),
        ("command", page["command"]),
    ]
    section("Facts", pairs(facts))
    stages = [
        (
            run["title"],
            "cached" if run["cached"] else run["status"].lower(),
            "" if run["cached"] or run["duration_s"] is None else duration(run["duration_s"]),
            (run["made"] or {}).get("digest", "")[:12],
            run["error"].splitlines()[0] if run["error"] else (run["made"] or {}).get("detail", ""),
        )
        for run in page["stages"]
    ]
    section("Stages", table(stages) + [f"{line(stage['title'])}  to come" for stage in page["to_come"]])
    if page["settings"]:
        text = yaml.safe_dump(page["settings"], sort_keys=False, allow_unicode=True, width=100)
        section("Settings that differ from the defaults", escaped(text).splitlines())


def _show_artifact(page: Page) -> None:
    click.echo(table([(page["name"], words(page["kind"] or "artifact"), page["digest"])])[0])
    click.echo(line(f"{page['directory']}: {PLACES[page['state']]}" if page["directory"] else PLACES[page["state"]]))
    units = page["units"]
    shown = [
        (name, measure(value, units.get(name, "")) if isinstance(value, int | float) else value)
        for name, value in page["facts"].items()
    ]
    section("Facts", pairs(shown))
    findings = [
        (
            each["title"],
            ", ".join(f"{name} {measure(value, each['units'].get(name, ''))}" for name, value in each["facts"].items()),
        )
        for each in page["findings"]
    ]
    section("Evaluations and audits", table(findings))
    section(
        "In the registry",
        [line(f"{each['name']} version {each['version']} {' '.join(each['aliases'])}") for each in page["versions"]],
    )
    made = [(each["relation"], each["name"], each["digest"][:12], each["detail"]) for each in page["parents"]]
    section("Made from", table(made))
    used = [
        (each["name"], each["digest"][:12], f"{each['relation']} it, {each['detail']}") for each in page["children"]
    ]
    section("Used for", table(used[:MOST]) + _more(len(used)))
    runs = [
        (run["title"], run["how"], (run["execution"] or {}).get("id", ""), when(run["started"])) for run in page["uses"]
    ]
    section("Runs with this output", table(runs[:MOST]) + _more(len(runs)))
    files = [(size(each["bytes"]) if isinstance(each["bytes"], int) else "", each["name"]) for each in page["files"]]
    section("Files", table(files[:MOST]) + _more(len(files)))


def _more(count: int) -> list[str]:
    return [f"and {count - MOST:,} more"] if count > MOST else []
