"""The last section in the terminal: the model that was made, its path, and the commands to serve and see it."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baton.infra.commands import command
from baton.infra.progress import say
from baton.infra.storage.buckets import is_bucket
from baton.infra.tracking.store import tracking_hint
from baton.tasks.core.seeds import without_seed
from baton.tasks.models.named import NotNamed, name_model
from baton.tasks.pages.blocks import List, Section, Text
from baton.tasks.pages.source import Source


def what_was_made(sources: list[Source], html: Path, places: Mapping[str, str], in_home: bool = True) -> Section:
    """Return the last section in the terminal. `places` are those of the artifacts by digest, of which only some files
    are read here. If `in_home`, a published model gets its link by name, unless a decision promotes it or not."""
    published = [source for source in sources if source.manifest.kind == "published_model"]
    decided = any(source.manifest.kind == "decision" for source in sources)
    texts, items = [], list[tuple[str, str]]()
    for source in published:
        facts, place = source.manifest.fields, places[source.manifest.digest]
        texts.append(_chosen(facts))
        link = _link(facts["registry_name"], place) if in_home and not decided else None
        items += [("Published model:", _short(link))] if link else []
        items.append(("Its files, which later runs leave as they are:" if link else "Published model:", _short(place)))
        if decided:
            items.append(("To serve the champion:", command(f"baton serve --follow {facts['registry_name']}")))
        else:
            items += _to_serve(link or place)
    if not published and (last := _last(sources)):
        place = places[last.manifest.digest]
        texts.append(f"{last.label} is the run's last model. The recipe has no `publish`, so it has no name.")
        items += [("Model:", _short(place)), *_to_serve(place)]
    items += [("Report:", _short(str(html))), ("To see the run and its metrics:", tracking_hint())]
    if decided:
        names = {source.manifest.facts["registry_name"] for source in published}
        items += [("To roll the champion back:", command(f"baton rollback {name}")) for name in names]
    else:
        label = "To run a changed copy of the recipe (unchanged stages come from the cache):"
        items.append((label, command("baton run mine.yaml")))
    return Section("What was made", [*map(Text, texts), List(items)])


def _chosen(facts: Mapping[str, Any]) -> str:
    why = f": {facts['why']}" if facts.get("why") else ""
    return f"{facts['label']} was published as {facts['registry_name']}, version {facts['registry_version']}{why}."


def _link(name: str, place: str) -> str | None:
    """Return the model's link by name, or None if it cannot have one, which is reported."""
    try:
        return None if is_bucket(place) else str(name_model(name, Path(place)))
    except NotNamed as error:
        say(f"! the published model has no path by name: {error}")
        return None


def _to_serve(place: str) -> list[tuple[str, str]]:
    if is_bucket(place):
        return []
    return [("To serve it:", command(f"baton serve {shlex.quote(_short(place))}"))]


def _last(sources: list[Source]) -> Source | None:
    """Return the run's last model, of the first seed."""
    models = [source for source in sources if source.manifest.kind == "hf_model"]
    return next((model for model in reversed(models) if model.label == without_seed(model.label)), None)


def _short(place: str) -> str:
    """Return a path relative to the current folder if it is below it."""
    path = Path(place)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else place
