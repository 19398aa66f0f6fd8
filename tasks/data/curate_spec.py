"""The spec of curation: the steps that select the documents to keep, and mask personal data in them.

curate:
  - language: {keep: [en], min_score: 0.65}
  - classifier: {model: hf://owner/name/model.bin, keep: [hq], min_score: 0.02}
  - quality: {rules: [gopher, c4]}
    max_dropped: 0.5
  - pii: {emails: mask, ips: mask}
  - function: filters.py:keep
  - near_duplicates: {threshold: 0.8}
  - decontaminate: {against: [evaluate], ngram: 13}
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from baton.infra.placement.config import VariableName
from baton.infra.storage.address import fetch
from baton.infra.storage.buckets import is_bucket
from baton.tasks.core.spec import ByBaton, PathText, Problem, Spec, identity_if_set, not_identity
from baton.tasks.data.source_spec import JSONL_SUFFIXES, PARQUET_SUFFIXES, FilesSource
from baton.tasks.user_code.functions import Function

EVALUATE = "evaluate"  # in place of a path
MODEL_SUFFIXES = (".bin", ".ftz")
FASTTEXT = (793712314).to_bytes(4, "little")  # first bytes of a model: FASTTEXT_FILEFORMAT_MAGIC_INT32 of fasttext.cc
ITEM_SUFFIXES = (*JSONL_SUFFIXES, *PARQUET_SUFFIXES, ".txt", ".md")

# ISO 639-1 codes of the languages that lingua identifies
_CODES = (
    "af ar az be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gu he hi hr hu hy id is it ja ka kk ko la lg lt "
    "lv mi mk mn mr ms nb nl nn pa pl pt ro ru sk sl sn so sq sr st sv sw ta te th tl tn tr ts uk ur vi xh yo zh zu"
)
LANGUAGES = frozenset(_CODES.split())

Rules = Literal["gopher", "c4", "fineweb", "repetition"]


class LanguageStep(Spec):
    """Keep documents in some languages, identified by lingua from their first 2,000 characters, offline."""

    keep: list[str] = Field(min_length=1, description="languages to keep; ISO 639-1 codes")
    min_score: float = Field(
        0.65, gt=0, le=1, description="smallest probability of the most likely language, among all that lingua knows"
    )

    def problems(self) -> list[Problem]:
        allowed = f"an ISO 639-1 code that lingua identifies: {', '.join(sorted(LANGUAGES))}"
        return [
            Problem(f"keep.{number}", code, allowed) for number, code in enumerate(self.keep) if code not in LANGUAGES
        ]


class ClassifierStep(Spec):
    """Keep documents by a fastText classifier of your own choice, such as lid.176 for languages, or one of quality."""

    model: PathText = Field(
        description="a fastText model (.bin, .ftz): a file, or its address (s3://…, gs://…, az://…, hf://owner/name/file)"
    )
    keep: list[str] = Field(min_length=1, description="labels to keep, without `__label__`")
    min_score: float = Field(0.5, gt=0, le=1, description="smallest probability of these labels together")
    state: ByBaton[str | None] = Field(
        None, description="state of the model at the start of the run; filled in by Baton"
    )

    def source(self) -> FilesSource:
        return _ModelFile(path=self.model)

    def local_model(self) -> Path:
        """The model's file on this machine, downloaded first if it is at an address. Raises StorageError."""
        (file,) = self.source().files()
        return fetch(self.model) / file.name if is_bucket(self.model) else Path(file.place)

    def missing(self) -> list[Problem]:
        """The problems with the file, by a cheap check."""
        if problems := self.source().missing():
            return [replace(problem, path="model") for problem in problems]
        allowed = "one fastText model"
        files = self.source().files()
        if len(files) > 1:
            return [Problem("model", self.model, f"{allowed}; {len(files)} files match")]
        with files[0].open() as model:
            begin = model.read(len(FASTTEXT))
        return [] if begin == FASTTEXT else [Problem("model", self.model, f"{allowed}, which this file is not")]

    def pinned(self) -> Self:
        """A copy with the model's state. Raises StorageError."""
        return self.model_copy(update={"state": self.source().state()})


class _ModelFile(FilesSource):
    suffixes = MODEL_SUFFIXES  # type: ignore[assignment]  # a ClassVar, narrowed in the base class


class QualityStep(Spec):
    """datatrove's filters with its default thresholds, in this order. They are written for English."""

    rules: list[Rules] = Field(
        min_length=1,
        description="gopher (length, symbols, stop words), repetition (Gopher's repeated lines and n-grams), fineweb "
        "(line ends, short and repeated lines), c4 (also removes lines that do not end in punctuation)",
    )


class PiiStep(Spec):
    """Mask personal data with datatrove's formatter."""

    emails: Literal["mask", "keep"] = Field("mask", description="email addresses: mask as email@example.com, or keep")
    ips: Literal["mask", "keep"] = Field("mask", description="public IPv4 addresses: mask as 22.214.171.124, or keep")


class NearDuplicatesStep(Spec):
    """Drop documents that are similar to an earlier one by their 5-grams of words, over all sources."""

    method: Literal["minhash"] = Field("minhash", description="MinHash signatures of 112 values, by rensa")
    threshold: float = Field(
        0.8,
        ge=0.5,
        le=1,
        description="Jaccard similarity of the two documents' sets of 5-grams from which the later one is dropped; it "
        "is estimated, with a standard error of 0.04 at 0.8",
    )


class DecontaminateStep(Spec):
    """Drop documents that contain texts of an evaluation."""

    against: list[PathText] = Field(
        min_length=1,
        max_length=100,
        description="`evaluate`, the held-out rows of the sets that the recipe's evaluators name under `data`; or "
        "files (.jsonl, .jsonl.gz, .jsonl.zst, .parquet: each row is an item; .txt, .md: each file is one), a folder "
        "or a glob of them, local or at an address",
    )
    ngram: int = Field(
        13,
        ge=5,
        le=50,
        description="words in a row that a document must have in common with an item; an item of fewer words, at "
        "least 8, is found if it occurs in full",
    )
    state: ByBaton[str | None] = Field(
        None, description="state of the files at the start of the run; filled in by Baton"
    )
    index: ByBaton[str | None] = not_identity(None, "folder of the index; filled in by Baton")

    def sources(self) -> dict[int, FilesSource]:
        """The files of the items of `against`, by their numbers, without the recipe's evaluation."""
        return {number: _ItemFiles(path=place) for number, place in enumerate(self.against) if place != EVALUATE}

    def missing(self) -> list[Problem]:
        """The problems with the files on this machine, by a cheap check."""
        return [
            replace(problem, path=f"against.{number}")
            for number, source in self.sources().items()
            for problem in source.missing()
        ]

    def pinned(self) -> Self:
        """A copy with the files' state. Raises StorageError."""
        states = [source.state() for source in self.sources().values()]
        return self.model_copy(update={"state": "; ".join(states) or None})


class _ItemFiles(FilesSource):
    suffixes = ITEM_SUFFIXES  # type: ignore[assignment]  # a ClassVar, narrowed in the base class


class CurateStep(Spec):
    """One step: exactly one of `language`, `classifier`, `quality`, `pii`, `function`, `near_duplicates` and
    `decontaminate`."""

    language: LanguageStep | None = Field(None, description="Keep documents in some languages")
    classifier: ClassifierStep | None = identity_if_set(None, "Keep documents by a fastText classifier")
    quality: QualityStep | None = Field(None, description="Rules of Gopher, C4 and FineWeb")
    pii: PiiStep | None = Field(None, description="Mask personal data")
    function: Function | None = Field(
        None,
        description="function of a document (with `id`, `source`, `text` and `metadata`) that returns True to keep it, "
        "and False, or the reason as a string, to drop it: `file.py:function` or `package.module:function`",
    )
    environment: list[VariableName] = not_identity(
        [],
        "environment variables that the step's function reads, such as an API key; they must be set where it runs. "
        "Not part of the identity: if they change which documents it keeps, name another function",
        max_length=100,
    )
    near_duplicates: NearDuplicatesStep | None = Field(
        None, description="Drop documents that are similar to an earlier one; at most once in the list"
    )
    decontaminate: DecontaminateStep | None = Field(None, description="Drop documents with texts of an evaluation")
    max_dropped: float = identity_if_set(
        1.0, "largest share of the documents that the step may drop; more is an error", gt=0, le=1
    )

    @property
    def kind(self) -> str:
        return next((name for name in KINDS if getattr(self, name) is not None), "")

    def sources(self) -> dict[str, FilesSource]:
        """The files that the step reads, by the field that names them."""
        if self.classifier:
            return {"classifier.model": self.classifier.source()}
        named = self.decontaminate.sources() if self.decontaminate else {}
        return {f"decontaminate.against.{number}": source for number, source in named.items()}

    def problems(self) -> list[Problem]:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            return [Problem("", given or None, f"exactly one of {', '.join(KINDS)}; each step is an item of the list")]
        if self.environment and self.function is None:
            return [Problem("environment", self.environment, "only with a `function`; leave it out")]
        part: Spec = getattr(self, self.kind)
        if part is self.function:
            return []  # missing() checks it
        return [problem.under(self.kind) for problem in part.problems()]

    def missing(self) -> list[Problem]:
        """The problems with its function or its files."""
        if self.function:
            return [problem.under("function") for problem in self.function.problems()]
        part = self.classifier or self.decontaminate
        return [problem.under(self.kind) for problem in part.missing()] if part else []


KINDS = ("language", "classifier", "quality", "pii", "function", "near_duplicates", "decontaminate")


def order_problems(steps: list[CurateStep]) -> list[Problem]:
    """Check the order of the steps. Near duplicates are found between two passes over the documents, and the second
    pass only drops documents."""
    problems: list[Problem] = []
    near = [number for number, step in enumerate(steps) if step.near_duplicates]
    for number in near[1:]:
        problems.append(
            Problem(f"{number}.near_duplicates", "again", "at most one in the list; keep the lower threshold")
        )
    for number, step in enumerate(steps):
        changes = "pii" if step.pii else "quality" if step.quality and "c4" in step.quality.rules else None
        if near and number > near[0] and changes:
            why = "rule c4 removes lines" if changes == "quality" else "it masks text"
            allowed = f"before near_duplicates, since it changes documents ({why}); later steps can only drop them"
            problems.append(Problem(f"{number}.{changes}", "after near_duplicates", allowed))
    return problems


def against_evaluation(steps: Sequence[CurateStep]) -> bool:
    """Return whether the steps need the rows of the recipe's evaluation."""
    return any(step.decontaminate and EVALUATE in step.decontaminate.against for step in steps)


def around_near_duplicates(
    steps: list[CurateStep],
) -> tuple[list[CurateStep], NearDuplicatesStep | None, list[CurateStep]]:
    """The steps before the one for near duplicates, that step, and the steps after it."""
    at = next((number for number, step in enumerate(steps) if step.near_duplicates), len(steps))
    return steps[:at], steps[at].near_duplicates if at < len(steps) else None, steps[at + 1 :]


def step_names(steps: Sequence[CurateStep]) -> list[str]:
    """The steps' names in reports: their kind, with a number from its second use on."""
    names: list[str] = []
    for number, step in enumerate(steps):
        uses = sum(other.kind == step.kind for other in steps[: number + 1])
        names.append(step.kind if uses == 1 else f"{step.kind}-{uses}")
    return names
