"""The named sources in the plan of a pretraining: tokens, share and epochs of each.

Tokens are those of the shards if these are cached. Otherwise they are estimated from the files' sizes, before curation
and duplicates; a source that is not in files has none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from baton.infra.storage.buckets import StorageError
from baton.infra.text import count, share
from baton.tasks.data.spec import CorpusSpec, Source
from baton.tasks.hardware.need import BYTES_PER_TOKEN
from baton.tasks.pretrain.mixture import parts_of
from baton.tasks.pretrain.spec import PretrainSpec

COMPRESSION = 3.0  # of .gz, .zst and Parquet


@dataclass(frozen=True)
class PlannedSource:
    """One named source of a blend."""

    name: str
    tokens: int | None  # None if not known before the run
    estimated: bool
    share: float | None  # of the training tokens; None if it is by size, which is not known
    epochs: float | None
    most_epochs: float | None

    def text(self) -> str:
        """Describe the source: `web: 70.0 % of the training tokens, 3.2 epochs of about 1.2 B tokens: repeated`."""
        shared = "by size" if self.share is None else f"{share(self.share)} of the training tokens"
        if self.tokens is None or self.epochs is None:
            return f"{self.name}: {shared}; its size is not known before the run"
        about = "about " if self.estimated else ""
        over = self.most_epochs is not None and self.epochs > self.most_epochs
        repeated = f": more than epochs: {self.most_epochs:g}" if over else ": repeated" if self.epochs > 1 else ""
        return f"{self.name}: {shared}, {self.epochs:.3g} epochs of {about}{count(self.tokens)} tokens{repeated}"


def planned_sources(
    corpus: CorpusSpec, spec: PretrainSpec, shards: Mapping[str, int] | None
) -> Iterator[PlannedSource]:
    """The corpus' sources in this pretraining. `shards`: the training tokens of each, if they were tokenized."""
    tokens = (
        dict(shards) if shards else {name: estimated_tokens(source) for name, source in sorted(corpus.sources.items())}
    )
    known = {name: number for name, number in tokens.items() if number}
    weighted = all(spec.mixture[name].weight for name in tokens)
    # with weights, shares do not depend on sizes
    sizes = {name: known.get(name, 1) for name in tokens}
    parts = parts_of({Path(): {"tokens": sum(sizes.values()), "sources": sizes}}, [1.0], spec.mixture)
    for part in parts:
        name = str(part.source)
        has_share, has_tokens = weighted or len(known) == len(tokens), name in known
        epochs = part.epochs(spec.tokens()) if has_share and has_tokens else None
        shared = part.share if has_share else None
        yield PlannedSource(name, known.get(name), not shards, shared, epochs, part.most_epochs)


def estimated_tokens(source: Source) -> int | None:
    """Tokens of a source's files; None if they can't be listed here."""
    try:
        files = source.files() if not hasattr(source, "name") and hasattr(source, "files") else []
    except StorageError:
        return None
    size = sum(
        file.size * (1 if file.name.endswith((".jsonl", ".txt", ".md", ".py")) else COMPRESSION) for file in files
    )
    return round(size / BYTES_PER_TOKEN) or None
