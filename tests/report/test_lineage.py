from pathlib import Path

from baton.tasks.core.manifest import Manifest
from baton.tasks.pages.source import Source
from baton.tasks.report.lineage import lineage
from tests.pages.reading import Reading


def source(name: str, *parents: str, digest: str = "") -> Source:
    made_from = {f"input {number}": parent for number, parent in enumerate(parents)}
    return Source(name, Path(), Manifest("kind", digest or name, {}, {}, parents=made_from))


def arrows(*sources: Source) -> set[tuple[str, str]]:
    said = Reading(lineage(list(sources))).values("aria-label")[0]
    pairs = [edge.split(" from ") for edge in said.removeprefix("Lineage: ").split("; ")]
    return {(parent, child) for child, parents in pairs for parent in parents.split(" and ") if parent != "outside"}


def drawn(*sources: Source) -> list[str]:
    """Return the classes of the arrows."""
    page = Reading(lineage(list(sources)))
    return [value or "" for tag, name, value in page.attributes if tag == "path" and name == "class"]


def test_an_arrow_that_other_arrows_imply_stands_back() -> None:
    found = drawn(source("a"), source("b", "a"), source("c", "a", "b"))
    assert sorted(found) == ["edge", "edge", "weak"]


def test_a_parent_that_is_not_in_the_run_is_no_node() -> None:
    assert arrows(source("sft", "a model from elsewhere")) == set()
    assert drawn(source("sft", "a model from elsewhere")) == []


def test_the_order_of_the_artifacts_does_not_matter() -> None:
    assert arrows(source("c", "b"), source("b", "a"), source("a")) == {("a", "b"), ("b", "c")}


def test_of_equal_contents_the_older_one_is_the_parent() -> None:
    """The model was imported and exported again."""
    assert arrows(source("exported", "weights", digest="model"), source("weights", "model"),
                  source("loaded", digest="model")) == {("loaded", "weights"), ("weights", "exported")}  # fmt: skip
    assert arrows(source("a", "y", digest="x"), source("b", "x", digest="y"), source("c", "z", digest="z")) == {
        ("b", "a")
    }


def test_a_published_model_comes_from_the_model_alone() -> None:
    parents = {"model": "sft", "models.0": "base", "reports.0": "eval", "parts.corpus": "corpus"}
    published = Source("published", Path(), Manifest("published_model", "p", {}, {}, parents=parents))
    others = source("base"), source("sft", "base"), source("eval", "base"), source("corpus")
    assert ("sft", "published") in (found := arrows(*others, published))
    assert {parent for parent, child in found if child == "published"} == {"sft"}


def test_the_graph_is_described_in_words_too() -> None:
    page = Reading(lineage([source("a"), source("b", "a")]))
    assert page.values("aria-label")[0] == "Lineage: a from outside; b from a"
