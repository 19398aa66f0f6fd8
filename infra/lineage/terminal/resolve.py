"""Find the execution or the artifact that a user names on the command line."""

from baton.infra.errors import UserError
from baton.infra.lineage import facts
from baton.infra.lineage.graph import UnknownNode
from baton.infra.lineage.pages import Pages
from baton.infra.lineage.search import results

MODEL = "hf_model"
NEWEST = "last"  # the newest execution
SHORTEST = 6  # characters of an id that is not complete
MOST = 8  # candidates in a message


class NotFound(UserError):
    """Raised if nothing, or more than one thing, has a name."""


def execution_of(pages: Pages, name: str) -> str | None:
    """Return the id of the execution that a name stands for: its id or the beginning of it, or `last`."""
    executions = pages.graph.executions
    if name == NEWEST and executions:
        return max(executions.values(), key=lambda each: (each.started, each.id)).id
    if name in executions:
        return name
    found = [id for id in executions if id.startswith(name)] if len(name) >= SHORTEST else []
    return found[0] if len(found) == 1 else None


def artifact_of(pages: Pages, name: str) -> str:
    """Return the digest of the artifact that a name stands for: a digest or its first 6 characters, a registered model
    (NAME, NAME@ALIAS or NAME/VERSION; by default its champion, else its newest version), the last model of an
    execution, or whatever the search finds, if that is one artifact. Raises NotFound."""
    graph = pages.graph
    try:
        return graph.resolve(name)
    except UnknownNode:
        pass
    if digest := _registered(pages, name):
        return digest
    if id := execution_of(pages, name):
        models = [run.output for run in graph.stages(id) if run.output and run.kind == MODEL]
        if not models:
            raise NotFound(f"{name}: this run has made no model")
        return models[-1]
    with pages.engine.connect() as connection:
        found = results(graph, connection, name.split()) if name.strip() else {"artifacts": [], "matching": {}}
    named = [row for row in found["artifacts"] if row["name"] == name] or found["artifacts"]
    if len(named) == 1 and found["matching"]["artifacts"] == len(found["artifacts"]):
        return str(named[0]["digest"])
    if not named:
        raise NotFound(f"{name}: no artifact, registered model or run has this name; `baton runs` lists the runs")
    listed = [f"  {row['digest'][:12]}  {row['name']}  {row['detail']}" for row in named[:MOST]]
    more = found["matching"]["artifacts"] - len(listed)
    raise NotFound(
        "\n".join([f"{name}: several artifacts match; name one by its digest", *listed, f"  {more} more" * (more > 0)])
    )


def _registered(pages: Pages, name: str) -> str | None:
    model, at, alias = name.partition("@")
    model, slash, number = (model, "", "") if at else name.rpartition("/") if "/" in name else (name, "", "")
    with pages.engine.connect() as connection:
        versions = [each for each in facts.versions(connection) if each["name"] == model]  # newest first
    if at:
        versions = [each for each in versions if alias in each["aliases"]]
    elif slash:
        versions = [each for each in versions if str(each["version"]) == number]
    else:
        versions = [each for each in versions if "champion" in each["aliases"]] or versions
    digests = [digest for each in versions if (digest := each["tags"].get("baton.model"))]
    return str(digests[0]) if digests and pages.graph.is_artifact(digests[0]) else None
