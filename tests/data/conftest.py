"""Fixtures of the data tests."""

from pathlib import Path

import pytest

from baton.tasks.data import corpus as corpus_engine
from baton.tasks.data import tokenizer as tokenizer_engine
from tests.data.by_hand import new_job

LIBRARY = Path(__file__).parents[2] / "tasks"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus of real code, which is the code of Baton's own stages. It is created once."""
    spec = {"source": {"kind": "files", "path": str(LIBRARY / "**" / "*.py")}, "held_out": 0.3}
    job = new_job(tmp_path_factory.mktemp("corpus"), "corpus", spec)
    corpus_engine.work(job)
    return job.output


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    job = new_job(tmp_path_factory.mktemp("tokenizer"), "tokenizer", {"vocab_size": 600}, corpus=corpus)
    tokenizer_engine.work(job)
    return job.output
