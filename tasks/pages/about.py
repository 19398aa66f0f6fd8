"""The page of an artifact, as blocks."""

from collections.abc import Callable, Iterable, Mapping
from pkgutil import resolve_name
from typing import Any

from baton.infra.text import value, words
from baton.infra.tracking.flatten import leaves
from baton.infra.tracking.redact import redact
from baton.tasks.artifacts import kind_of
from baton.tasks.pages.blocks import Block, Cell, Fold, Mark, Notes, Table, Tone
from baton.tasks.pages.source import Notice, Source
from baton.tasks.pages.training import training_curves


def about(source: Source, notices: bool = True) -> list[Block]:
    """Return the page of one artifact: its notices unless another section has them, the blocks of its kind, then its
    spec, inputs and versions."""
    page: Callable[[Source], list[Block]] = resolve_name(kind_of(source.manifest.kind).page)
    return [*(noticed(source.notices()) if notices else ()), *page(source), *_made_with(source)]


def noticed(notices: Iterable[Notice]) -> list[Block]:
    """Return one box with all notices that invalidate a result, and a list of the notes."""
    by_tone: dict[Tone, list[str]] = {"bad": [], "quiet": []}
    for notice in notices:
        by_tone["bad" if notice.invalidates else "quiet"].append(notice.text)
    return [Notes(texts, tone) for tone, texts in by_tone.items() if texts]


def heading(source: Source) -> str:
    """Return a heading such as "Base model · 1a2b3c4d5e6f"."""
    label = source.manifest.facts.get("label")
    name = words(source.manifest.kind).replace("hf model", "model")
    return f"{name[:1].upper()}{name[1:]}{f' {label}' if label else ''} · {source.digest}"


def facts(source: Source) -> list[Block]:
    return [facts_table(source), *training_curves(source)]


def facts_table(source: Source) -> Table:
    return _pairs("Facts", {words(name): fact for name, fact in source.manifest.fields.items()})


def _made_with(source: Source) -> list[Block]:
    manifest = source.manifest
    parents: list[list[Cell]] = [
        [name, kind_of(manifest.kind).relation.to(manifest.digest, name, manifest.parents), Mark(digest, "quiet")]
        for name, digest in sorted(manifest.parents.items())
    ]
    blocks: list[Block] = [_pairs("Spec", leaves(redact(manifest.spec))), _pairs("Versions", manifest.versions)]
    if parents:
        blocks.insert(0, Table("Inputs", ["input", "relation", "digest"], parents, "lll"))
    return [Fold("Spec, inputs and versions", blocks)]


def _pairs(caption: str, items: Mapping[str, Any]) -> Table:
    return Table(caption, ["name", "value"], [[name, value(item)] for name, item in items.items()], "ll")
