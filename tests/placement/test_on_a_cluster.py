"""A placed stage as registered on a Flyte cluster, where the connector's service runs its task."""

from typing import Any

import pytest

pytest.importorskip("sky", reason="SkyPilot is not in images/gpu.txt")
from flytekit.models.literals import Literal, LiteralMap

from baton.infra.flyte.connector import _job_name, _make_order
from baton.infra.placement.config import NO_IMAGE, Placement
from baton.workflows.recipe import Recipe
from tests.stage.compiled import IMAGES, job_spec, nodes, options, templates

L4 = {"accelerators": ["L4:1"], "storage": "s3://bucket/baton"}
PRETRAINING = {"corpus": {}, "tokenizer": {"vocab_size": 512}, "shards": {}, "pretrain": {}}
SLURM = {"infra": ["slurm/alpha"], "storage": "/shared", "image": "docker.invalid/mine:1"}


def literals(node: Any) -> LiteralMap:
    """Return a node's constants, as propeller passes them to a connector."""
    return LiteralMap({each.var: Literal(scalar=each.binding.scalar) for each in node.inputs})


@pytest.fixture(scope="module")
def placed() -> Any:
    corpora = [{"placement": L4}, {"placement": SLURM}]
    return job_spec(Recipe.model_validate(PRETRAINING | {"corpus": corpora[0], "more_corpora": corpora[1:]}))


def test_it_is_of_the_connector_s_type_and_keeps_its_command(placed: Any) -> None:
    task = templates(placed)["prepare_corpus"]
    assert task.type == "skypilot"
    assert task.container.args[0] == "pyflyte-fast-execute"
    assert task.container.args[-4:] == ["task-module", "baton.tasks.data.task", "task-name", "prepare_corpus"]


def test_one_template_serves_all_placements_which_come_with_the_input(placed: Any) -> None:
    assert [task.id.name for task in placed.tasks].count("baton.tasks.data.task.prepare_corpus") == 1
    given = [options(node) for node in nodes(placed)["prepare_corpus"]]
    assert [each.fields["placement"] for each in given] == [L4, SLURM]


def test_the_connector_reads_each_call_s_own_placement(placed: Any) -> None:
    task = templates(placed)["prepare_corpus"]
    orders = [_make_order(task, literals(node), None) for node in nodes(placed)["prepare_corpus"]]
    assert [Placement.model_validate(order.placement) for order in orders] == [
        Placement.model_validate(each) for each in (L4, SLURM)
    ]
    assert [order.storage for order in orders] == ["s3://bucket/baton", "/shared"]


def test_a_job_s_name_is_the_same_wherever_it_goes(placed: Any) -> None:
    task = templates(placed)["prepare_corpus"]
    first, second = (_job_name(task, literals(node)) for node in nodes(placed)["prepare_corpus"])
    assert first == second


def test_its_image_is_the_one_that_is_pinned(placed: Any) -> None:
    assert templates(placed)["prepare_corpus"].container.image == "registry.invalid/baton-data@sha256:1"


def test_a_placed_stage_needs_no_image_where_the_machines_have_the_environment() -> None:
    elsewhere = {"pretrain": {"placement": {"infra": ["slurm/alpha"], "storage": "/shared"}}}
    pinned = [image for image in IMAGES if image.name != "baton-train"]
    spec = job_spec(Recipe.model_validate(PRETRAINING | elsewhere), pinned)
    assert templates(spec)["pretrain"].container.image == NO_IMAGE
