"""The typed artifacts that stages exchange: a directory, its digest, and the facts the next stage needs.

With the facts the next stage can reject bad input before it spends compute. The same facts are in the directory's
`manifest.json`; `from_directory` reads them back.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from flytekit.types.directory import FlyteDirectory
from pydantic import BaseModel, ConfigDict, ValidationError, ValidatorFunctionWrapHandler, field_validator

from infra.paths import located
from infra.storage.buckets import is_bucket
from infra.text import count, measure, number, share
from tasks.core.lacking import may_lack, restore
from tasks.core.manifest import ALL, ArtifactError, Manifest
from tasks.core.stored import RECREATE_HINT, fetch, manifest_at


class Artifact(BaseModel):
    """A content-addressed directory. `digest` is BLAKE3 over its file manifest, and `identity` that of its files and
    facts (tasks/core/manifest.py); it is empty if it was made before facts were part of cache keys."""

    model_config = ConfigDict(protected_namespaces=())
    kind: ClassVar[str] = "artifact"  # in a mapping of mixed kinds: the manifest has the actual kind and its facts
    family: ClassVar[str] = "other"  # its shape on the lineage pages: data, tokenizer, model, finding, page
    page: ClassVar[str] = "tasks.pages.about:facts"  # the function that makes its page

    directory: FlyteDirectory
    digest: str
    identity: str = ""

    @field_validator("directory", mode="wrap")
    @classmethod
    def _existing(cls, value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        """Flyte checks that a local folder exists; a path in a home that was moved is updated. Raises ArtifactError."""
        if isinstance(value, dict) and isinstance(value.get("path"), str):
            place = located(value["path"])
            value = value | {"path": place}
            if may_lack(place):
                return FlyteDirectory(place, remote_directory=False)
        try:
            return check(value)
        except ValidationError as error:
            raise ArtifactError(f"{cls.kind} in {value}: its directory is gone. {RECREATE_HINT}") from error

    @classmethod
    def from_directory(cls, path: Path) -> Self:
        """The artifact in a directory, by its manifest. Raises ArtifactError."""
        return cls.from_place(str(path))

    @classmethod
    def from_place(cls, place: str) -> Self:
        """The artifact in a directory or at an address, by its manifest. Raises ArtifactError."""
        return cls.described(place, manifest_at(place))

    @classmethod
    def described(cls, place: str, manifest: Manifest) -> Self:
        """The artifact at a place with this manifest."""
        # remote_directory=False: the files stay where they are; Flyte copies nothing
        directory = FlyteDirectory(place, remote_directory=False)
        return cls(directory=directory, digest=manifest.digest, identity=manifest.identity, **manifest.fields)

    def facts(self) -> dict[str, Any]:
        """Its fields other than directory and digest, as in its manifest."""
        return self.model_dump(exclude={"directory", "digest", "identity"})

    @property
    def key(self) -> str:
        """It in the cache keys of the stages that it is an input of."""
        return self.identity or self.digest

    def detail(self) -> str:
        """Its main fact, as the lineage pages show it."""
        return self.kind.replace("_", " ")

    def title(self, stage: str) -> str:
        """The title of the run of `stage` that made it."""
        return stage

    @property
    def place(self) -> str:
        """Its location: a path, or a URL in storage."""
        return str(self.directory.remote_source or self.directory.path)

    def at(self, place: str) -> Self:
        """The same artifact at another location: a path or a URL in storage."""
        return self.model_copy(update={"directory": FlyteDirectory(place, remote_directory=False)})

    def manifest(self) -> Manifest:
        """Its manifest, local or in storage; no files are downloaded. Raises ArtifactError."""
        return manifest_at(self.place)

    def local(self, patterns: Sequence[str] = ALL) -> Path:
        """The directory on this machine, recreated if it is gone; if it is elsewhere, the files that match a pattern
        are downloaded (once). Raises ArtifactError."""
        restore(self.place)
        return fetch(self.place, self.digest, patterns) if is_bucket(self.place) else Path(located(self.place))


class Corpus(Artifact):
    """Documents, exact duplicates dropped, split by content hash into train and held-out."""

    kind = "corpus"
    family = "data"
    page = "tasks.data.page:corpus"
    held_out_files: ClassVar[Sequence[str]] = ("held_out-*.parquet",)
    partitions_file: ClassVar[str] = "record/partitions.json"  # those that it was made of, for the next increment
    documents: int
    held_out_documents: int
    bytes: int
    held_out_bytes: int
    duplicates: int
    empty: int
    invalid_utf8: int
    broken: int = 0  # files of which something was skipped
    broken_records: int = 0  # records that were skipped; without those behind a damage, which nobody can count
    curation: dict[str, dict[str, int]] = {}  # documents that reached each step, were dropped and changed
    sources: dict[str, dict[str, int]] = {}  # documents and bytes in each split of each named source
    edited: int = 0  # this and the next three: changes since the previous corpora of an increment
    renamed: int = 0
    deleted: int = 0
    gone: int = 0  # documents of the known corpora that the source no longer has
    known_digest: str = ""  # of an increment: the key of the digests of the known corpora, oldest first

    def detail(self) -> str:
        return f"{number(self.documents)} documents"


class StoredPartitions(Artifact):
    """`partitions.json`: the keys of the partitions that one pod has read or tokenized for others; they are in
    storage."""

    kind = "partitions"
    partitions: int


class Tokenizer(Artifact):
    """A Hugging Face tokenizer directory."""

    kind = "tokenizer"
    family = "tokenizer"
    page = "tasks.data.page:tokenizer"
    vocab_size: int
    eos_id: int
    pad_id: int

    def detail(self) -> str:
        return f"{number(self.vocab_size)} tokens"


class TokenizedCorpus(Artifact):
    """Megatron `.bin/.idx`: `train`, or `train-<source>` for each named source, and `held_out`; of large ones
    several."""

    kind = "tokenized_corpus"
    family = "data"
    page = "tasks.data.page:tokenized_corpus"
    held_out_files: ClassVar[Sequence[str]] = ("held_out.*",)
    tokens: int
    held_out_tokens: int
    held_out_bytes: int
    vocab_size: int
    eos_id: int  # the token that ends each document
    tokenizer_digest: str
    sources: dict[str, int] = {}  # training tokens of each named source
    prefixes: dict[str, int] = {}  # of each `.bin/.idx`, where there are several of one source: train-web-00000

    def detail(self) -> str:
        return f"{count(self.tokens)} tokens"


class Rows(Artifact):
    """`train.jsonl` and `held_out.jsonl`: one row per line, in TRL's columns; `rows.json`: how they were processed."""

    kind = "rows"
    family = "data"
    page = "tasks.rows.page:rows"
    held_out_files: ClassVar[Sequence[str]] = ("held_out.jsonl",)
    row_kind: str  # messages, prompt_completion, preference, prompt, text
    format: str  # the detected format
    conversational: bool  # lists of messages, not text
    columns: list[str]
    rows: int  # for training
    held_out_rows: int
    duplicates: int  # dropped, as are the next two
    faulty: int
    contaminated: int

    def detail(self) -> str:
        return f"{number(self.rows)} rows"


class RewardCheck(Artifact):
    """`check.json`: what rewards give for the rows' own answers, and for those of other rows."""

    kind = "reward_check"
    family = "finding"
    page = "tasks.reward_check.page:reward_check"
    rewards: int  # that were tried
    faults: int  # of these, the ones that do not score a row's own answers higher

    def detail(self) -> str:
        return f"{number(self.rewards)} rewards"


class MegatronCheckpoint(Artifact):
    """Megatron's dist_checkpointing directory, with `model.json` (the model's spec) beside it."""

    kind = "megatron_checkpoint"
    family = "model"
    page = "tasks.pretrain.page:checkpoint"
    step: int  # of its run
    tokens_seen: int  # in its run and in those that it continues
    parameters: int
    vocab_size: int
    sequence_length: int
    precision: str
    layout: dict[str, int]
    validation_loss: float
    tokenizer_digest: str

    def detail(self) -> str:
        return f"step {number(self.step)}"


class MegatronWeights(Artifact):
    """A dist_checkpoint of weights only, imported from Hugging Face: `checkpoint/`, `huggingface/`, `model.json`."""

    kind = "megatron_weights"
    family = "model"
    architecture: str
    parameters: int
    vocab_size: int
    precision: str
    license: dict[str, str] = {}  # of the imported model: see tasks/convert/base_license.py

    def detail(self) -> str:
        return f"{count(self.parameters)} weights"


class Base(BaseModel):
    """The HFModel that an adapter belongs to."""

    digest: str
    place: str


class HFModel(Artifact):
    """A Hugging Face directory: safetensors, config, generation config, tokenizer. With a `base`, an adapter of that
    model (tasks/models/adapter_base.py)."""

    kind = "hf_model"
    family = "model"
    page = "tasks.convert.page:model"
    # what an engine of another library, and the audit, compare with what they compute
    checks: ClassVar[Sequence[str]] = ("record/probe.json", "record/conversion.json")
    label: str  # base, or the name of the post-training stage
    architecture: str
    parameters: int
    vocab_size: int
    max_positions: int
    dtype: str
    base: Base | None = None
    license: dict[str, str] = {}  # of an existing model: see tasks/convert/base_license.py

    def base_model(self) -> "HFModel | None":
        """The base of an adapter. Raises ArtifactError if another model is in its place."""
        if self.base is None:
            return None
        place = located(self.base.place)
        restore(place)
        base = HFModel.from_place(located(place))
        if base.digest != self.base.digest:
            raise ArtifactError(
                f"{self.place} is an adapter of model {self.base.digest[:12]}, but {self.base.place} is "
                f"{base.digest[:12]}. {RECREATE_HINT}"
            )
        return base

    def with_base_at(self, place: str) -> "HFModel":
        """The same adapter, its base at another location."""
        assert self.base is not None
        return self.model_copy(update={"base": self.base.model_copy(update={"place": place})})

    def detail(self) -> str:
        return f"model, {count(self.parameters)}"


class ConversionAudit(Artifact):
    """`audit.json`: the evidence that an HFModel equals the MegatronCheckpoint that it was converted from."""

    kind = "conversion_audit"
    family = "finding"
    page = "tasks.convert.page:audit"
    tensors: int
    parameters: int
    tokens: int
    logits_max_abs_diff: float
    argmax_agreement: float

    def detail(self) -> str:
        return f"{share(self.argmax_agreement)} agree"


class EvalReport(Artifact):
    """`report.json`, `documents.jsonl` and `completions.jsonl` of one model."""

    kind = "eval_report"
    family = "finding"
    page = "tasks.evaluate.page:evaluation"
    label: str
    model_digest: str
    metrics: dict[str, dict[str, Any]]  # by name; each a tasks.core.metric.Metric
    headline: str = ""  # the main metric: the first evaluator's first, or bits per byte
    measured: dict[str, str] = {}  # "bits_per_byte", or an evaluator's name: on what

    def title(self, stage: str) -> str:
        return f"{stage}-{self.label}"

    def detail(self) -> str:
        metric = self.metrics.get(self.headline)
        return f"{self.headline} {measure(metric['value'], metric['unit'])}" if metric else super().detail()


class Choice(Artifact):
    """`choice.json`: which of several models is the best by one metric, and the metric of each."""

    kind = "choice"
    family = "finding"
    label: str  # of the chosen model, as the next three
    chosen: str  # digest
    headline: str  # the metric's name
    metrics: dict[str, dict[str, Any]]  # by name; each a tasks.core.metric.Metric


class Decision(Artifact):
    """`decision.json`: whether a candidate replaces the champion, and the figures behind the decision."""

    kind = "decision"
    family = "finding"
    page = "tasks.promote.page:decision"
    outcome: str  # promoted, kept, rejected
    candidate: str  # digests of the HFModels
    champion: str | None
    metric: str
    improvement: float | None  # of the main metric; units as in PromotionSpec; None: not available
    bound: float | None  # lower confidence bound of the improvement
    new_text_ratio: float | None = None  # the champion's bits per byte on the new text over those on the old

    def detail(self) -> str:
        return super().detail() if self.improvement is None else f"{100 * self.improvement:+.1f} %"


class Endpoint(Artifact):
    """`endpoint.json`: how a model is served, and its measured throughput and latency."""

    kind = "endpoint"
    family = "finding"
    page = "tasks.serve.page:endpoint"
    label: str
    model_digest: str
    requests_per_s: float  # the highest measured
    tokens_per_s: float
    first_token_ms: float  # median, one request at a time

    def detail(self) -> str:
        return f"{number(self.tokens_per_s)} tokens/s"


class PublishedModel(Artifact):
    """The final Hugging Face directory with its model card, and its registry version."""

    kind = "published_model"
    family = "model"
    page = "tasks.publish.page:published_model"
    label: str
    registry_name: str
    registry_version: str

    def detail(self) -> str:
        return f"version {self.registry_version}"


class Promotion(Artifact):
    """`promotion.json`: a decision carried out, and the registry's aliases after it."""

    kind = "promotion"
    family = "finding"
    page = "tasks.promote.page:promotion"
    registry_name: str
    registry_version: str
    outcome: str
    champion: str | None  # registry versions
    previous: str | None

    def detail(self) -> str:
        return f"version {self.registry_version} {self.outcome}"


class Report(Artifact):
    """`report.html` and `report.md` of one execution."""

    kind = "report"
    family = "page"


# in the order of a report
KINDS: dict[str, type[Artifact]] = {kind.kind: kind for kind in Artifact.__subclasses__()}


def shown(kind: str, facts: Mapping[str, Any]) -> dict[str, str]:
    """How the lineage pages show an artifact: its family and its main fact."""
    artifact = KINDS.get(kind, Artifact).model_construct(**facts)
    return {"family": artifact.family, "detail": artifact.detail()}
