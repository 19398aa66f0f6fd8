"""Compute how often each training stage goes over its data, as far as that is known before the run.

Rows and tokens are those of the cached artifacts. Otherwise they are counted in files on this machine, before
duplicates and faulty rows are dropped; those of functions, of the hub and in compressed files are not known.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.infra.storage.buckets import StorageError, is_bucket
from baton.infra.text import count
from baton.tasks.core.spec import StageSpec
from baton.tasks.data.spec import CorpusSpec
from baton.tasks.pretrain.spec import PretrainSpec
from baton.tasks.rows.spec import RowsSpec
from baton.workflows.checks.rows import valid_first
from baton.workflows.continuous_training.calls import Night
from baton.workflows.plan.sources import estimated_tokens

MOST_BYTES = 1_000_000_000  # of JSONL that is counted: a second or so
BLOCK = 1 << 22


@dataclass(frozen=True)
class Epochs:
    """A stage's epochs over one set."""

    epochs: float | None  # None if not known
    of: int | None  # number of rows or tokens
    unit: str  # "rows", "tokens", "new tokens", "replayed tokens"
    exact: bool  # `of` is from a cached artifact, not counted before it is made
    why: str = ""  # the reason why it is not known

    def text(self) -> str:
        """Describe the epochs: `4.7 over about 410 rows: repeated`."""
        if self.epochs is None or self.of is None:
            return f"not known before the run ({self.why})"
        about, times = "" if self.exact else "about ", f"{self.epochs:.3g}"
        return f"{times} over {about}{count(self.of)} {self.unit}{': repeated' * (float(times) > 1)}"


def of_pretraining(
    spec: PretrainSpec, corpora: Sequence[CorpusSpec], shards: Sequence[Mapping[str, Any]]
) -> Iterator[Epochs]:
    """The epochs over each data set, in order. `shards`: the facts of the cached ones, else empty."""
    known = [*(facts.get("tokens") for facts in shards), *[None] * len(corpora)][: len(corpora)]
    tokens = [cached or _estimate(corpus) for cached, corpus in zip(known, corpora, strict=True)]
    weights = spec.data_weights or ([float(number) for number in tokens if number] if all(tokens) else None)
    for number, (total, exact) in enumerate(zip(tokens, known, strict=True)):
        if weights is None or not total:
            yield Epochs(None, total, "tokens", bool(exact), "nor is the size of the text")
            continue
        yield Epochs(spec.tokens() * weights[number] / sum(weights) / total, total, "tokens", bool(exact))


def of_night(spec: PretrainSpec, night: Night, exact: bool) -> Iterator[Epochs]:
    """The epochs over the new text and over the replayed text of a night that continues training. `exact`: the new
    text is tokenized."""
    assert spec.data_weights
    *old, new = spec.data_weights
    replayed = sum(sum(tokens.values()) for tokens in night.replayed())
    texts = [("new tokens", new, sum(night.new.values()), exact), ("replayed tokens", sum(old), replayed, True)]
    for unit, share, tokens, is_exact in texts:
        if tokens:
            yield Epochs(spec.tokens() * share / tokens, tokens, unit, is_exact)


def of_tuning(spec: StageSpec, rows: RowsSpec | None, facts: Mapping[str, Any]) -> Epochs:
    """The epochs over a set of rows. `facts`: those of the cached rows, else empty."""
    first = None if facts else valid_first(rows)
    exact = facts.get("rows")
    total = exact if exact is not None else counted(rows) if rows else None
    epochs = spec.epochs(total or 1, str(facts.get("row_kind") or (first and first.kind) or ""))
    if isinstance(epochs, str) or not total:
        return Epochs(None, None, "rows", False, epochs if isinstance(epochs, str) else "nor is the number of rows")
    return Epochs(epochs, total, "rows", exact is not None)


def counted(spec: RowsSpec) -> int | None:
    """The approximate number of training rows in a set's files; None if it is not known, or too large to count."""
    if spec.path is None or is_bucket(spec.path):
        return None
    try:
        files = spec.files().files()
    except StorageError:
        return None
    if not files or sum(file.size for file in files if file.name.endswith(".jsonl")) > MOST_BYTES:
        return None
    rows = 0
    for file in files:
        if file.name.endswith(".jsonl"):
            try:
                with file.open() as stream:
                    rows += sum(block.count(b"\n") for block in iter(lambda: stream.read(BLOCK), b""))
            except OSError:
                return None
        elif file.name.endswith(".parquet"):
            import pyarrow as pa
            import pyarrow.parquet as pq

            try:
                rows += pq.read_metadata(file.place).num_rows
            except (pa.ArrowException, OSError):
                return None
        else:
            return None
    return round(min(rows, spec.limit or rows) * (1 - spec.held_out))


def _estimate(corpus: CorpusSpec) -> int | None:
    tokens = [estimated_tokens(source) for source in corpus.by_name().values()]
    known = [number for number in tokens if number]
    return round(sum(known) * (1 - corpus.held_out)) if known and len(known) == len(tokens) else None
