"""Curation: the documents that each step keeps, drops and changes, and the counts."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from lingua import Language

from baton.tasks.core.job import Job, StageError
from baton.tasks.data.corpus import work
from baton.tasks.data.curate import Curation
from baton.tasks.data.curate_spec import LANGUAGES, CurateStep
from baton.tasks.data.curation_tally import TALLY, Tally
from baton.tasks.data.documents import Document, document, read_documents
from baton.tasks.data.spec import CorpusSpec
from tests.data.by_hand import digest, facts, new_job

ENGLISH = "The river had risen in the night, and the old bridge was gone before anybody in the village had noticed it. "
GERMAN = "Der Fluss war in der Nacht gestiegen, und die alte Brücke war fort, ehe es im Dorf jemand bemerkt hatte. "
WORDS = (
    "the of and to that with have river bridge village farmer letter winter garden captain window harbour story was "
    "followed remembered painted carried mentioned repaired visited described watched before after under slowly often"
)


def prose(seed: int, lines: int = 12) -> str:
    """Return pseudo-English text that every rule keeps."""
    draw, words = random.Random(seed), WORDS.split()
    return "\n".join(f"The {' '.join(draw.choices(words, k=14))} number {draw.random():.4f}." for _ in range(lines))


def curated(step: dict[str, Any], *texts: str, folder: Path = Path()) -> tuple[list[str | None], Tally]:
    """Apply one step to each text."""
    tally = Tally()
    curation = Curation([CurateStep.model_validate(step).pinned()], folder)
    found = [curation.apply(document(f"a.txt#{number}", text), None, tally) for number, text in enumerate(texts)]
    return [item.text if item else None for item in found], tally


def test_languages_that_are_not_kept_are_dropped_by_name() -> None:
    kept, tally = curated({"language": {"keep": ["en"]}}, ENGLISH, GERMAN, "12 34")
    assert kept == [ENGLISH, None, None]
    count = tally.of("language", None)
    assert (count.documents, count.dropped) == (3, 2)
    assert count.reasons == {"de": 1, "uncertain": 1}
    assert count.samples["de"][0].text == GERMAN
    assert count.samples["de"][0].source == "a.txt#1"


def test_beyond_a_number_reasons_are_counted_together() -> None:
    """A function may put a different number into each reason."""
    halves = Tally(), Tally()
    for number in range(300):
        item = document(f"a.txt#{number}", "text")
        halves[number % 2].of("function", None).drop(item, 4, f"score {number} is too low {'!' * 999}")
    halves[0].add(halves[1])
    (count,) = halves[0].totals().values()
    assert count.reasons["other reasons"] == 200 and sum(count.reasons.values()) == count.dropped == 300
    assert len(count.reasons) == 101 and max(map(len, count.reasons)) == 200
    assert len(count.samples["other reasons"]) == 3


def test_every_language_that_a_recipe_may_name_is_one_that_lingua_knows() -> None:
    assert set(LANGUAGES) == {language.iso_code_639_1.name.lower() for language in Language.all()}


@pytest.mark.parametrize(
    ("rule", "text", "reason"),
    [
        ("gopher", "Too short.", "gopher: short_doc"),
        ("gopher", " ".join(["# bread"] * 200), "gopher: too_many_hashes"),
        ("repetition", "the same line of text\n" * 30, "repetition: dup_line_frac"),
        ("c4", prose(1) + "\nlorem ipsum dolor sit amet.", "c4: lorem_ipsum"),
        ("fineweb", "short\nlines\nwithout\nan end", "fineweb: line_punct_ratio"),
    ],
)
def test_a_rule_says_why_it_drops(rule: str, text: str, reason: str) -> None:
    kept, tally = curated({"quality": {"rules": [rule]}}, prose(3), text)
    assert kept == [prose(3), None]
    assert tally.of("quality", None).reasons == {reason: 1}


def test_c4_removes_lines_and_the_change_is_counted() -> None:
    kept, tally = curated({"quality": {"rules": ["c4"]}}, f"Menu | Home | Login\n{prose(1)}")
    assert kept == [prose(1)]
    assert tally.of("quality", None).changed == 1


def test_personal_data_is_masked_as_in_any_other_order() -> None:
    """datatrove would use its own masks in turn, so that a document would depend on the previous ones."""
    text = "Write to jane.doe@home.org or joe@home.org; the server is 8.8.8.8, and 10.0.0.1 inside."
    masked = "Write to email@example.com or email@example.com; the server is 22.214.171.124, and 10.0.0.1 inside."
    assert curated({"pii": {}}, text, text)[0] == [masked, masked]
    assert "8.8.8.8" in str(curated({"pii": {"ips": "keep"}}, text)[0][0])


@pytest.fixture
def filters(tmp_path: Path) -> Path:
    path = tmp_path / "filters.py"
    path.write_text(
        "def keep(document):\n"
        "    if 'bomb' in document.text:\n"
        "        return 1 / 0\n"
        "    if 'spam' in document.text:\n"
        "        return 'spam'\n"
        "    return 'draft' not in document.source and len(document.text) > 3\n"
        "def wrong(document):\n"
        "    return None\n"
    )
    return path


def test_a_function_keeps_a_document_or_says_why_not(filters: Path, tmp_path: Path) -> None:
    kept, tally = curated({"function": f"{filters}:keep"}, "a text", "spam", "abc", folder=tmp_path / "functions")
    assert kept == ["a text", None, None]
    assert tally.of("function", None).reasons == {"spam": 1, "keep": 1}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("keep", r"filters.py:keep: ZeroDivisionError: .*line 3.*, for a.txt#0 \(document [0-9a-f]{16}\)"),
        ("wrong", r"filters.py:wrong: returns None; return True to keep .*, for a.txt#0"),
    ],
)
def test_a_function_that_fails_is_named_with_the_document(
    filters: Path, tmp_path: Path, function: str, message: str
) -> None:
    with pytest.raises(StageError, match=message):
        curated({"function": f"{filters}:{function}"}, "a bomb", folder=tmp_path / "functions")


# -- the engine ----------------------------------------------------------------------------------------


def corpus_job(folder: Path, sources: dict[str, list[str]], *steps: dict[str, Any], **partitions: int) -> Job:
    for name, texts in sources.items():
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    named = {name: {"kind": "jsonl", "path": str(folder / f"{name}.jsonl")} for name in sources}
    raw = {"sources": named, "curate": list(steps), "held_out": 0.3, "partitions": {"size_mb": 0.01, **partitions}}
    spec = CorpusSpec.model_validate(raw).pinned()
    return new_job(folder / "job", "corpus", spec.model_dump(mode="json"))


TEXTS = {
    "books": [*(prose(seed) for seed in range(20)), GERMAN],
    "web": [*(prose(seed) for seed in range(20, 50)), "Mail me: jane@home.org. " + prose(99), GERMAN],
}
STEPS: list[dict[str, Any]] = [{"language": {"keep": ["en"]}}, {"pii": {}}]


def test_every_step_is_counted_by_source(tmp_path: Path) -> None:
    job = corpus_job(tmp_path, TEXTS, *STEPS)
    work(job)
    tally = Tally.model_validate_json((job.output / "record" / TALLY).read_bytes())
    of_language = tally.steps["language"]
    assert (of_language["books"].documents, of_language["web"].documents) == (21, 32)
    assert of_language["books"].reasons == of_language["web"].reasons == {"de": 1}
    assert of_language["web"].bytes == sum(len(text.encode()) for text in TEXTS["web"])
    assert tally.steps["pii"]["web"].changed == 1
    assert facts(job.output)["curation"]["pii"] == {"documents": 51, "dropped": 0, "changed": 1}
    texts = [item.text for split in ("train", "held_out") for item in read_documents(job.output, split)]
    assert len(texts) == 51
    assert not any("jane@" in text for text in texts)


def test_documents_that_curation_makes_equal_are_duplicates(tmp_path: Path) -> None:
    mails = [f"Mail {name}@home.org. " + prose(99) for name in ("jane", "joe")]
    job = corpus_job(tmp_path, TEXTS | {"web": TEXTS["web"] + mails}, {"pii": {}})
    work(job)
    assert facts(job.output)["duplicates"] == 2  # the German text of both sources, and the email


def test_a_step_that_drops_everything_is_refused(tmp_path: Path) -> None:
    job = corpus_job(tmp_path, TEXTS, {"language": {"keep": ["fr"]}})
    with pytest.raises(StageError, match=r"curate\.0 \(language\) drops all 53 documents .*en 51, de 2"):
        work(job)


def test_a_step_that_drops_more_than_it_may_is_refused(tmp_path: Path) -> None:
    job = corpus_job(tmp_path, TEXTS, STEPS[1], STEPS[0] | {"max_dropped": 0.01})
    with pytest.raises(StageError, match=r"curate\.1 \(language\) drops .*% of 53 .*max_dropped is 1\.0%"):
        work(job)


def test_another_limit_reads_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    job = corpus_job(tmp_path, TEXTS, STEPS[0])
    spec = job.spec(CorpusSpec).model_dump(mode="json")
    spec["curate"][0]["max_dropped"] = 0.5

    def scans(job: Job) -> set[str]:
        work(job)
        return {path.name for path in (tmp_path / "home" / "partitions").glob("*.scan")}

    assert scans(job) == scans(new_job(tmp_path / "again", "corpus", spec)) != set()


def test_the_limit_and_a_function_s_source_decide_whether_a_corpus_is_made(filters: Path) -> None:
    def identity(*steps: dict[str, Any]) -> dict[str, Any]:
        return CorpusSpec.model_validate({"curate": list(steps)}).pinned().identity()

    assert identity(STEPS[0]) == identity(STEPS[0] | {"max_dropped": 1.0})
    assert identity(STEPS[0]) != identity(STEPS[0] | {"max_dropped": 0.5})
    before = identity({"function": f"{filters}:keep"})
    filters.write_text(filters.read_text() + "\n\ndef keep(document):\n    return True\n")
    assert identity({"function": f"{filters}:keep"}) != before


@pytest.mark.parametrize(
    ("step", "path", "allowed"),
    [
        ({}, "curate.0", "exactly one of language, classifier, quality, pii"),
        ({"language": {"keep": ["en"]}, "pii": {}}, "curate.0", "exactly one of"),
        ({"language": {"keep": ["english"]}}, "curate.0.language.keep.0", "an ISO 639-1 code"),
        ({"function": "nowhere.py:keep"}, "curate.0.function.name", "does not exist"),
    ],
)
def test_a_wrong_step_is_found_before_the_run(step: dict[str, Any], path: str, allowed: str) -> None:
    spec = CorpusSpec.model_validate({"curate": [step]})
    (problem,) = [*spec.problems(), *spec.missing()]
    assert problem.path == path
    assert allowed in problem.allowed


def test_two_different_files_of_one_name_are_refused(tmp_path: Path) -> None:
    """Python would import the first module in place of the second."""
    steps = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "twins.py").write_text(f"def keep(document): return '{name}'\n")
        steps.append({"function": f"{tmp_path}/{name}/twins.py:keep"})
    (problem,) = CorpusSpec.model_validate({"curate": steps}).missing()
    assert problem.path == "curate.1.function"
    assert "two different ones are imported as twins.py; rename one" in problem.allowed
    with pytest.raises(StageError, match=r"another function's file is named twins\.py too; rename one"):
        Curation([CurateStep.model_validate(step).pinned() for step in steps], tmp_path / "job")


def test_an_unchanged_document_keeps_its_id() -> None:
    item = document("a.txt", prose(1))
    kept = Curation([CurateStep.model_validate({"pii": {}})], Path()).apply(item, None, Tally())
    assert kept == item == Document(item.id, "a.txt", prose(1))


def test_neither_the_result_nor_the_counts_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    made = []
    for workers in (1, 3):
        job = corpus_job(tmp_path / str(workers), TEXTS, *STEPS, concurrency=workers)
        work(job)
        made.append((digest(job.output), (job.output / "record" / TALLY).read_text()))
    assert made[0] == made[1]


def test_near_duplicates_are_dropped_over_all_partitions_before_the_later_steps(tmp_path: Path, filters: Path) -> None:
    near = [f"{prose(number)}\nA last line that the first does not have." for number in range(5)]
    later = [f"{prose(number)} spam" for number in range(60, 63)]
    texts = {"books": TEXTS["books"], "web": [*near, *TEXTS["web"], *later]}
    job = corpus_job(tmp_path, texts, {"near_duplicates": {}}, {"function": f"{filters}:keep"})
    work(job)
    of = Tally.model_validate_json((job.output / "record" / TALLY).read_bytes()).steps
    assert (of["near_duplicates"]["books"].dropped, of["near_duplicates"]["web"].dropped) == (0, 5)
    assert (of["near_duplicates"]["web"].documents, of["function"]["web"].documents) == (39, 34)
    assert of["function"]["web"].reasons == {"spam": 3}
    found = facts(job.output)
    assert (found["duplicates"], found["documents"] + found["held_out_documents"]) == (1, 52)


def test_a_function_that_cannot_be_loaded_is_an_error_of_the_stage(tmp_path: Path) -> None:
    (tmp_path / "filters.py").write_text("import nowhere_to_be_found\ndef keep(document): return True\n")
    job = corpus_job(tmp_path, TEXTS, {"function": f"{tmp_path}/filters.py:keep"})
    with pytest.raises(StageError, match="importing filters raises ModuleNotFoundError"):
        work(job)
