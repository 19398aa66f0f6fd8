"""The named sources in a plan: exact or estimated tokens, shares and epochs."""

from pathlib import Path
from typing import Any

import pytest

from baton.tasks.pretrain.spec import PretrainSpec
from baton.workflows.plan.planned import plan
from baton.workflows.plan.sources import planned_sources
from baton.workflows.recipe import Recipe, context_of


@pytest.fixture
def recipe(tmp_path: Path) -> dict[str, Any]:
    for name, size in (("web", 40_000), ("books", 4_000)):
        (tmp_path / f"{name}.txt").write_text("x" * size)
    sources = {name: {"kind": "files", "path": str(tmp_path / f"{name}.txt")} for name in ("web", "books")}
    return {
        "corpus": {"sources": sources},
        "tokenizer": {"vocab_size": 300},
        "shards": {},
        "pretrain": {"steps": 50, "global_batch": 16, "sequence_length": 25},
    }


def test_sizes_are_estimated_before_the_shards_exist(recipe: dict[str, Any]) -> None:
    whole = Recipe.model_validate(recipe)
    (pretrain,) = [step for step in plan(whole, context_of(whole), 0.4) if isinstance(step.spec, PretrainSpec)]
    books, web = pretrain.sources
    assert (books.tokens, web.tokens) == (1_000, 10_000)
    assert web.share == pytest.approx(10 / 11)
    assert web.epochs == pytest.approx(20_000 / 11_000)
    assert web.text() == "web: 90.9 % of the training tokens, 1.82 epochs of about 10,000 tokens: repeated"


def test_the_shards_tokens_are_exact_and_a_limit_of_epochs_is_compared(recipe: dict[str, Any]) -> None:
    for name, weight in (("web", 3), ("books", 1)):
        recipe["corpus"]["sources"][name] |= {"weight": weight, "epochs": 2}
    whole = Recipe.model_validate(recipe)
    spec, corpus = whole.pretraining(), whole.corpus
    assert spec and corpus
    books, web = planned_sources(corpus, spec, {"books": 2_000, "web": 30_000})
    assert books.text() == "books: 25.0 % of the training tokens, 2.5 epochs of 2,000 tokens: more than epochs: 2"
    assert (web.share, web.epochs, web.estimated) == (0.75, 0.5, False)


def test_a_source_whose_size_nobody_knows_has_the_share_of_its_weight(recipe: dict[str, Any]) -> None:
    recipe["corpus"]["sources"]["hub"] = {"kind": "huggingface", "name": "owner/name"}
    for weighted, shown in ((False, "hub: by size; its"), (True, "hub: 33.3 % of the training tokens; its")):
        for source in recipe["corpus"]["sources"].values():
            source |= {"weight": 1.0} if weighted else {}
        whole = Recipe.model_validate(recipe)
        spec, corpus = whole.pretraining(), whole.corpus
        assert spec and corpus
        (hub,) = [source for source in planned_sources(corpus, spec, None) if source.name == "hub"]
        assert hub.text() == f"{shown} size is not known before the run"
