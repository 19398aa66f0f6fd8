"""A killed evaluation continues after its saved answers, with the same report."""

import time
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.core.checkpoints import KIND
from baton.tasks.core.job import Job, StageError
from baton.tasks.core.manifest import MANIFEST, verify
from baton.tasks.evaluate.saved_answers import SavedAnswers
from baton.tasks.evaluate.spec import EvaluateSpec
from tests import forked
from tests.evaluate.test_evaluate import rows
from tests.pretrain.tiny import write_job
from tests.serve.tiny import tiny_corpus, tiny_model

forked.load("vllm")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, "evaluate", KIND, {}, {})


def refuse() -> list[Any]:
    raise StageError("asked again")


def test_an_answer_is_requested_once(job: Job) -> None:
    assert SavedAnswers(job).answer(lambda: [1.25, ["text", True]]) == [1.25, ["text", True]]
    assert SavedAnswers(job).answer(refuse) == [1.25, ["text", True]]


def test_saving_takes_little_of_the_time(job: Job) -> None:
    saved = SavedAnswers(job)
    for _call in range(20):
        saved.answer(lambda: [0.5])
    assert [path.name for path in (job.work / "answers").iterdir()] == ["part-00000001"]


def test_nothing_is_left_when_the_report_is_there(job: Job) -> None:
    saved = SavedAnswers(job)
    saved.answer(lambda: [0.5])
    saved.remove()
    assert not any(job.work.iterdir())


def start(job: Path) -> forked.Forked:
    return forked.module("baton.tasks.evaluate.evaluate", job)


@pytest.mark.long
@pytest.mark.usefixtures("vllm")
def test_a_killed_evaluation_makes_the_same_report(tmp_path: Path) -> None:
    inputs = {"model": tmp_path / "model", "corpora.0": tmp_path / "corpus", "rows.0": tmp_path / "words"}
    tiny_model(inputs["model"])
    tiny_corpus(inputs["corpora.0"])
    rows(inputs["rows.0"], *[{"prompt": f"def area_{at}(", "answer": "self"} for at in range(600)])
    words = {"data": "words", "rewards": ["match"], "max_new_tokens": 16}
    spec = EvaluateSpec.model_validate({"bits_per_byte": {"held_out_bytes": 200_000}, "words": words})

    undisturbed, killed = (
        write_job(tmp_path / name, "evaluate", "eval_report", spec.model_dump(mode="json"), **inputs)
        for name in ("undisturbed", "killed")
    )
    assert start(undisturbed).wait() == 0
    process = start(killed)
    while not [*killed.glob(f"work/answers/part-*/{MANIFEST}")]:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert start(killed).wait() == 0
    assert verify(killed / "output").digest == verify(undisturbed / "output").digest
