"""Curation with a fastText classifier; the models are written by the tests."""

import math
import struct
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.core.job import StageError
from baton.tasks.data.classifier import check_classifiers, classify
from baton.tasks.data.corpus import work
from baton.tasks.data.curate_spec import ClassifierStep, CurateStep
from baton.tasks.data.documents import read_documents
from tests.data.test_curate import corpus_job, curated

# loss and model in fastText's args.h
SOFTMAX, SUPERVISED, SKIPGRAM = 3, 3, 2
WEIGHT = 3.0


def write_model(path: Path, labels: dict[str, list[str]], kind: int = SUPERVISED) -> Path:
    """Write a model in fastText's format, version 12. Each label has its own words, and a vector of words counts them.
    The logit of a label is WEIGHT times the share of its words among the known ones."""
    words = [word for of_label in labels.values() for word in of_label]
    size = len(labels)
    entries = [(word, 0) for word in words] + [(f"__label__{label}", 1) for label in labels]
    content = struct.pack("<ii", 793712314, 12)
    content += struct.pack("<12id", size, 5, 5, 1, 5, 1, SOFTMAX, kind, 0, 0, 0, 100, 1e-4)
    content += struct.pack("<3i2q", len(entries), len(words), size, len(words), -1)
    content += b"".join(text.encode() + b"\0" + struct.pack("<qb", 1, type_) for text, type_ in entries)
    rows = [[float(word in of_label) for of_label in labels.values()] for word in words]
    weights = [[WEIGHT * (row == column) for column in range(size)] for row in range(size)]
    for matrix in (rows, weights):
        content += struct.pack("<?2q", False, len(matrix), size)
        content += b"".join(struct.pack(f"<{size}f", *row) for row in matrix)
    path.write_bytes(content)
    return path


LABELS = {"en": ["river", "bridge", "the"], "de": ["Fluss", "Brücke", "der"]}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "lid.ftz", LABELS)


def step(model: Path, **changes: Any) -> dict[str, Any]:
    return {"classifier": {"model": str(model), "keep": ["en"], **changes}}


def test_the_probabilities_are_those_of_the_model(model: Path) -> None:
    """The text has three known words, on two lines."""
    found = dict(classify(ClassifierStep(model=str(model), keep=["en"]))("the river\nof der"))
    logits = {"en": WEIGHT * 2 / 3, "de": WEIGHT / 3}
    total = sum(map(math.exp, logits.values()))
    assert found == pytest.approx({label: math.exp(logit) / total for label, logit in logits.items()}, abs=1e-4)


def test_documents_of_other_labels_are_dropped_by_name(model: Path) -> None:
    kept, tally = curated(step(model, min_score=0.9), "the river", "der Fluss", "the river der", "unknown words")
    assert kept == ["the river", None, None, None]
    assert tally.of("classifier", None).reasons == {"de": 1, "uncertain": 2}


def test_a_small_probability_of_a_label_may_be_enough(model: Path) -> None:
    """Quality classifiers have small thresholds."""
    assert curated(step(model, min_score=0.02), "der Fluss")[0] == ["der Fluss"]


def test_a_corpus_is_curated_by_it(model: Path, tmp_path: Path) -> None:
    texts = [f"{'der Fluss' if seed % 2 else 'the river'} {seed}" for seed in range(40)]
    job = corpus_job(tmp_path / "corpus", {"web": texts}, step(model, min_score=0.6))
    work(job)
    kept = [item.text for split in ("train", "held_out") for item in read_documents(job.output, split)]
    assert sorted(kept) == sorted(texts[::2])


def test_another_model_in_the_same_file_is_another_corpus(model: Path) -> None:
    before = CurateStep.model_validate(step(model)).pinned()
    write_model(model, {"en": ["river"], "de": ["Fluss"]})
    assert CurateStep.model_validate(step(model)).pinned().identity() != before.identity()


def test_a_recipe_names_a_file_that_is_no_model(model: Path, tmp_path: Path) -> None:
    def problem(path: Path) -> str:
        (found,) = CurateStep.model_validate(step(path)).missing()
        return f"{found.path}: {found.allowed}"

    assert not CurateStep.model_validate(step(model)).missing()
    model.write_bytes(b"PK\3\4" + model.read_bytes())
    assert problem(model) == "classifier.model: one fastText model, which this file is not"
    assert "does not exist" in problem(tmp_path / "none.bin")


def test_a_label_that_the_model_lacks_is_an_error(model: Path) -> None:
    with pytest.raises(StageError, match=r"no label fr; it has de, en"):
        check_classifiers([CurateStep.model_validate(step(model, keep=["en", "fr"]))])


@pytest.mark.parametrize("size", [10, 60, 150, 250, -1])
def test_a_truncated_model_is_an_error(model: Path, size: int) -> None:
    """fastText crashes on some truncated models, reads others without end, and accepts others."""
    model.write_bytes(model.read_bytes()[:size])
    with pytest.raises(StageError, match=r"not a fastText classifier, or damaged \(.+\); download it again"):
        check_classifiers([CurateStep.model_validate(step(model))])


def test_vectors_of_words_are_no_classifier(tmp_path: Path) -> None:
    vectors = write_model(tmp_path / "words.bin", LABELS, SKIPGRAM)
    with pytest.raises(StageError, match="not a fastText classifier"):
        check_classifiers([CurateStep.model_validate(step(vectors))])


def test_a_model_that_is_gone_when_the_stage_starts_is_an_error(model: Path) -> None:
    model.unlink()
    with pytest.raises(StageError, match=r"lid\.ftz does not exist"):
        check_classifiers([CurateStep.model_validate(step(model))])
