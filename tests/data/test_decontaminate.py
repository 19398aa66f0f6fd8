"""A corpus without the texts of a model's evaluation."""

import json
import random
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest

from baton.tasks.core.job import Job, StageError
from baton.tasks.core.manifest import write_manifest
from baton.tasks.data.contamination import Contamination, write_index
from baton.tasks.data.corpus import work
from baton.tasks.data.curation_tally import TALLY, Tally
from baton.tasks.data.decontaminate import texts_of
from baton.tasks.data.documents import read_documents
from baton.tasks.data.ngrams import word_hashes
from baton.tasks.data.spec import CorpusSpec
from tests.data.by_hand import new_job

VOCABULARY = [f"word{number}" for number in range(2_000)]


def words(source: random.Random, number: int) -> str:
    return " ".join(source.choices(VOCABULARY, k=number))


def found(folder: Path, items: list[tuple[str, list[str]]], *texts: str, size: int = 13) -> list[str | None]:
    write_index(folder, items, size)
    known = Contamination(folder)
    return [known.find(text) for text in texts]


def test_every_planted_item_is_found_and_nothing_else(tmp_path: Path) -> None:
    source = random.Random(1)
    items = [(f"row {number}", [words(source, source.randint(8, 80))]) for number in range(500)]
    dirty = [f"{words(source, 100)} {text.upper()}!\n{words(source, 100)}" for _, (text,) in items]
    clean = [words(source, 200) for _ in range(500)]
    assert found(tmp_path, items, *dirty, *clean) == [name for name, _ in items] + [None] * 500


def test_thirteen_words_in_a_row_are_enough_and_twelve_are_not(tmp_path: Path) -> None:
    item = words(random.Random(2), 40)
    parts = [" ".join(item.split()[start : start + size]) for start, size in ((0, 13), (27, 13), (5, 12))]
    assert found(tmp_path, [("row", [item])], *parts) == ["row", "row", None]


def test_short_texts_are_found_whole_or_counted(tmp_path: Path) -> None:
    eight = words(random.Random(3), 8)
    about = write_index(tmp_path, [("eight", [eight, "yes"]), ("short", ["What is 3 + 5?", "8"])], 13)
    assert (about.items, about.too_short) == (2, 1)
    known = Contamination(tmp_path)
    assert known.find(f"so: {eight}.") == "eight"
    assert known.find(" ".join(eight.split()[1:])) is None
    assert known.find("What is 3 + 5? 8") is None


def test_texts_of_languages_without_spaces_are_found(tmp_path: Path) -> None:
    """The texts are found regardless of zero-width spaces, which some writers put between words, and of punctuation."""
    items = {
        "Chinese": "小明有三个苹果，他又买了五个苹果，然后把其中的两个送给了他的朋友小红。",
        "Thai": "สมชายมีแอปเปิ้ลสามผลเขาซื้อเพิ่มอีกห้าผลแล้วให้เพื่อนไปสองผลตอนนี้เขามีทั้งหมดกี่ผล",
        "Lao": "ສົມຊາຍມີໝາກໂປມສາມໜ່ວຍລາວຊື້ເພີ່ມອີກຫ້າໜ່ວຍແລ້ວໃຫ້ໝູ່ສອງໜ່ວຍ",
        "Khmer": "សុខមានផ្លែប៉ោមបីគាត់ទិញប្រាំទៀតហើយឲ្យមិត្តពីរតើនៅសល់ប៉ុន្មាន។",
        "Burmese": "မောင်မောင်တွင်ပန်းသီးသုံးလုံးရှိသည်သူထပ်၍ငါးလုံးဝယ်ပြီးသူငယ်ချင်းကိုနှစ်လုံးပေးသည်။",
    }
    dirty = [f"so {text[:-2]}\u200b, {text[-2:]}" for text in items.values()]
    clean = [text[:12] for text in items.values()]
    assert found(tmp_path, [(name, [text]) for name, text in items.items()], *dirty, *clean) == [*items] + [None] * 5


def test_a_text_is_found_in_any_form_of_its_characters(tmp_path: Path) -> None:
    text = "What's the größte bridge of Köln that was built before the year 1900, and what did its building cost?"
    other = text.replace("'", "’").replace("building", "buil\u00adding")
    forms = [normalize(form, each) for each in (text, other) for form in ("NFC", "NFD")]
    assert found(tmp_path, [("row", [text])], *forms) == ["row"] * 4


def test_a_mark_or_a_stacked_consonant_belongs_to_its_letter() -> None:
    for cluster in ("ที่", "เพื่", "น้ำ", "ໜ່", "ផ្លែ", "ណ្ណ", "က္က", "ငုံ", "བརྒྱ"[1:]):
        assert len(word_hashes(cluster)) == 1, cluster
    assert len(word_hashes("ที่นี่")) == len(word_hashes("ที่\u200bนี่")) == 2


def test_what_all_prompts_begin_with_is_no_contamination(tmp_path: Path) -> None:
    source = random.Random(4)
    instruction = words(source, 30)
    items = [(f"row {number}", [f"{instruction} {words(source, 20)}"]) for number in range(20)]
    assert found(tmp_path, items, f"{instruction} {words(source, 50)}", items[7][1][0]) == [None, "row 7"]


def test_a_passage_with_many_questions_is_reported(tmp_path: Path) -> None:
    source = random.Random(6)
    passage, exam = words(source, 100), tmp_path / "exam.jsonl"
    exam.write_text("\n".join(json.dumps({"q": f"{passage} {words(source, 20)}"}) for _ in range(11)))
    notices = corpus(tmp_path / "job", {"against": [str(exam)]}, [*map(str, range(20))]).notices.read_text()
    assert "less than half of 11 of 11 items" in notices and "exam.jsonl, row 1, is searched for" in notices


def test_rows_of_many_copies_are_found(tmp_path: Path) -> None:
    text = words(random.Random(5), 20)
    assert found(tmp_path, [(f"row {number}", [text]) for number in range(30)], text) == ["row 0"]


def test_the_texts_of_a_row() -> None:
    row = {
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Why?"}],
        "answer": "So.",
    }
    assert list(texts_of(row)) == ["Why?", "So."]


def corpus(folder: Path, step: dict[str, Any], texts: list[str], **inputs: list[Path]) -> Job:
    (folder / "text").mkdir(parents=True)
    for number, text in enumerate(texts):
        (folder / "text" / f"{number:03}.txt").write_text(text)
    spec = CorpusSpec.model_validate(
        {"source": {"kind": "files", "path": f"{folder}/text"}, "held_out": 0.2, "curate": [{"decontaminate": step}]}
    )
    job = new_job(folder / "job", "corpus", spec.pinned().model_dump(mode="json"), **inputs)
    work(job)
    return job


def test_a_corpus_without_the_evaluation(tmp_path: Path) -> None:
    """The corpus is compared with the held-out rows of an input, and with files."""
    source = random.Random(6)
    row, listed = words(source, 30), words(source, 30)
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "held_out.jsonl").write_text(json.dumps({"prompt": row, "answer": "7"}) + "\n")
    write_manifest(rows, "rows", {}, spec={"path": "data/sums.jsonl"})
    (tmp_path / "exam.jsonl").write_text(json.dumps({"question": {"stem": listed}}) + "\n")
    texts = [words(source, 60) for _ in range(20)]
    texts[3] += f"\n{row}"
    texts[5] = f"{listed} {texts[5]}"
    step = {"against": ["evaluate", f"{tmp_path}/exam.jsonl"]}
    job = corpus(tmp_path, step, texts, against=[rows])
    left = {item.text for split in ("train", "held_out") for item in read_documents(job.output, split)}
    assert left == set(texts) - {texts[3], texts[5]}
    count = Tally.model_validate_json((job.record / TALLY).read_bytes()).totals()["decontaminate"]
    assert count.reasons == {"sums.jsonl": 1, "exam.jsonl": 1}
    assert count.samples["sums.jsonl"][0].what == "has a text of sums.jsonl, held-out row 1"


def test_items_that_are_too_short_are_reported_and_refused_if_it_is_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "exam.jsonl").write_text(json.dumps({"q": "3 + 5"}) + "\n")
    step = {"against": [f"{tmp_path}/exam.jsonl"]}
    with pytest.raises(StageError, match=r"1 of 1 items of .*exam.jsonl are not searched for.*8 words\. Use longer"):
        corpus(tmp_path / "refused", step, ["one"])

    (tmp_path / "exam.jsonl").write_text("\n".join(json.dumps({"q": text}) for text in ("3 + 5", "a b c d e f g h")))
    notices = corpus(tmp_path / "told", step, [*map(str, range(20))]).notices.read_text()
    assert "1 of 2 items" in notices


def test_another_evaluation_is_another_corpus(tmp_path: Path) -> None:
    """Results of earlier runs are found by the content of the evaluation, and not by its path."""
    exam = tmp_path / "exam.txt"
    exam.write_text("one two three")
    step = {"curate": [{"decontaminate": {"against": [str(exam)]}}]}
    before = CorpusSpec.model_validate(step).pinned().identity()
    exam.write_text("another text")
    assert CorpusSpec.model_validate(step).pinned().identity() != before


def test_the_evaluation_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="needs the evaluation's rows"):
        corpus(tmp_path, {"against": ["evaluate"]}, ["one"])


def test_files_that_are_missing_are_a_problem(tmp_path: Path) -> None:
    spec = CorpusSpec.model_validate({"curate": [{"decontaminate": {"against": [f"{tmp_path}/no.jsonl"]}}]})
    (problem,) = spec.missing()
    assert problem.path == "curate.0.decontaminate.against.0"
