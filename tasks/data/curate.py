"""Apply the steps of a curation to documents, one at a time.

Languages are identified by lingua, whose models are in its package; quality rules and masks are from datatrove (which
finds words and sentences by spaCy's rules, without a model). Nothing is downloaded, except a classifier that has an
address. The result for a document depends only on its text, so it is the same in any order and in any process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from baton.tasks.core.job import StageError
from baton.tasks.data.classifier import classify
from baton.tasks.data.contamination import Contamination
from baton.tasks.data.curate_spec import (
    ClassifierStep,
    CurateStep,
    DecontaminateStep,
    LanguageStep,
    PiiStep,
    QualityStep,
    step_names,
)
from baton.tasks.data.curation_tally import Tally
from baton.tasks.data.documents import Document, document
from baton.tasks.user_code.functions import Function
from baton.tasks.user_code.load_function import described

LANGUAGE_CHARACTERS = 2_000  # beginning of a document by which its language is identified
MASKED_EMAIL = "email@example.com"
MASKED_IP = "22.214.171.124"


@dataclass(frozen=True)
class Dropped:
    reason: str
    what: str = ""  # details: shown with the sample, not counted separately


# the text to keep, changed or not
Rule = Callable[[Document], str | Dropped]


class Curation:
    """The steps, ready to be applied. `folder`: where users' functions are written; `names`: the names of the steps in
    reports, if these are not the first steps."""

    def __init__(self, steps: Sequence[CurateStep], folder: Path, names: Sequence[str] | None = None) -> None:
        named = zip(names or step_names(steps), steps, strict=True)
        self._rules = [(name, _rule(step, folder)) for name, step in named]

    def apply(self, item: Document, source: str | None, tally: Tally) -> Document | None:
        """The document, perhaps with a changed text; None if a step drops it. Raises StageError if a step fails."""
        size = len(item.text.encode()) if self._rules else 0
        for name, rule in self._rules:
            count = tally.of(name, source)
            count.documents += 1
            count.bytes += size
            outcome = rule(item)
            if isinstance(outcome, str) and not outcome.strip():
                outcome = Dropped("nothing is left")
            if isinstance(outcome, Dropped):
                count.drop(item, size, outcome.reason, outcome.what)
                return None
            if outcome != item.text:
                count.changed += 1
                item = document(item.source, outcome, item.metadata_json)
                size = len(outcome.encode())
        return item


def _rule(step: CurateStep, folder: Path) -> Rule:
    if step.language:
        return _language(step.language)
    if step.classifier:
        return _classifier(step.classifier)
    if step.quality:
        return _quality(step.quality)
    if step.pii:
        return _pii(step.pii)
    if step.decontaminate:
        return _decontaminate(step.decontaminate)
    assert step.function  # CurateStep.problems, and near duplicates are no rule for one document
    return _function(step.function, folder)


def _language(step: LanguageStep) -> Rule:
    from lingua import LanguageDetectorBuilder

    # from 120 characters on, both modes give the same; below, the other mode loads gigabytes of models, in 5 s
    detector = LanguageDetectorBuilder.from_all_languages().with_low_accuracy_mode().build()

    def rule(item: Document) -> str | Dropped:
        best = detector.compute_language_confidence_values(item.text[:LANGUAGE_CHARACTERS])[0]
        code = best.language.iso_code_639_1.name.lower()
        if best.value < step.min_score:
            return Dropped("uncertain")
        return item.text if code in step.keep else Dropped(code)

    return rule


def _classifier(step: ClassifierStep) -> Rule:
    labels_of = classify(step)

    def rule(item: Document) -> str | Dropped:
        labels = labels_of(item.text)
        if sum(share for label, share in labels if label in step.keep) >= step.min_score:
            return item.text
        return Dropped("uncertain" if not labels or labels[0][0] in step.keep else labels[0][0])

    return rule


def _quality(step: QualityStep) -> Rule:
    from datatrove import data
    from datatrove.pipeline import filters

    kinds = {
        "gopher": filters.GopherQualityFilter,
        "c4": filters.C4QualityFilter,
        "fineweb": filters.FineWebQualityFilter,
        "repetition": filters.GopherRepetitionFilter,
    }
    rules = [(name, kinds[name]()) for name in step.rules]

    def rule(item: Document) -> str | Dropped:
        library_document = data.Document(text=item.text, id=item.id)
        for name, library_filter in rules:
            try:
                verdict = library_filter.filter(library_document)
            except Exception as error:
                raise _failed(f"datatrove's rule {name}", item, repr(error)) from error
            passes, reason = verdict if isinstance(verdict, tuple) else (verdict, "")
            if not passes:
                return Dropped(f"{name}: {reason.removeprefix(f'{name}_')}" if reason else name)
        return str(library_document.text)

    return rule


def _pii(step: PiiStep) -> Rule:
    from datatrove.pipeline.formatters import PIIFormatter

    # one mask for each kind: several would be used in turn, and the result would depend on earlier documents
    formatter = PIIFormatter(
        remove_emails=step.emails == "mask",
        remove_ips=step.ips == "mask",
        email_replacement=MASKED_EMAIL,
        ip_replacement=MASKED_IP,
    )
    return lambda item: str(formatter.format(item.text))


def _decontaminate(step: DecontaminateStep) -> Rule:
    assert step.index  # with_indexes
    known = Contamination(Path(step.index))

    def rule(item: Document) -> str | Dropped:
        match = known.find(item.text)
        return Dropped(match.partition(",")[0], f"has a text of {match}") if match else item.text

    return rule


def _function(function: Function, folder: Path) -> Rule:
    keep = function.load(folder)

    def rule(item: Document) -> str | Dropped:
        try:
            answer = keep(item)
        except (Exception, SystemExit) as error:  # user code can raise anything
            raise _failed(function.name, item, described(error, folder)) from error
        if not isinstance(answer, bool | str):
            what = f"returns {answer!r:.60}; return True to keep a document, False or the reason as a string to drop it"
            raise _failed(function.name, item, what)
        if answer is True:
            return item.text
        return Dropped(answer if answer else function.attribute)

    return rule


def _failed(what: str, item: Document, why: str) -> StageError:
    return StageError(f"{what}: {why}, for {item.source} (document {item.id[:16]})")
