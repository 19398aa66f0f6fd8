from pathlib import Path

from tasks.manifest import Manifest
from tasks.pages.source import Source
from tasks.report.lineage import layout, lineage


def source(name: str, *parents: str, digest: str = "") -> Source:
    made_from = {f"input {number}": parent for number, parent in enumerate(parents)}
    return Source(name, Path(), Manifest("kind", digest or name, {}, {}, parents=made_from))


def places(*sources: Source) -> dict[str, tuple[int, int]]:
    return {node.source.name: (node.layer, node.lane) for node in layout(list(sources))}


def arrows(*sources: Source) -> set[tuple[str, str]]:
    nodes = layout(list(sources))
    return {(nodes[parent].source.name, node.source.name) for node in nodes for parent in node.parents}


def test_the_main_chain_is_one_straight_line_and_reports_hang_below() -> None:
    found = places(source("corpus"), source("base", "corpus"), source("eval", "base"), source("sft", "base"),
                   source("grpo", "sft"))  # fmt: skip
    assert found == {"corpus": (0, 0), "base": (1, 0), "sft": (2, 0), "eval": (2, 1), "grpo": (3, 0)}


def test_an_arrow_that_other_arrows_imply_is_left_out() -> None:
    assert arrows(source("a"), source("b", "a"), source("c", "a", "b")) == {("a", "b"), ("b", "c")}


def test_a_parent_that_is_not_in_the_run_is_no_node() -> None:
    assert places(source("sft", "a model from elsewhere")) == {"sft": (0, 0)}


def test_the_order_of_the_artifacts_does_not_matter() -> None:
    assert places(source("c", "b"), source("b", "a"), source("a")) == {"a": (0, 0), "b": (1, 0), "c": (2, 0)}


def test_of_equal_contents_the_older_one_is_the_parent() -> None:
    """A model that was imported and exported again."""
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


def test_the_graph_is_said_in_words_too() -> None:
    assert lineage([source("a"), source("b", "a")]).alt == "Lineage: a from outside; b from a"
