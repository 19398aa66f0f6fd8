"""Layouts: the valid ones, the errors of others, and the nearest valid one."""

import itertools
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.tasks.models.model_spec import ExpertsSpec, ModelSpec
from baton.tasks.pretrain.layout import Layout, layouts, nearest
from baton.tasks.pretrain.spec import BatchWarmup, PretrainSpec

DENSE = ModelSpec(layers=8, heads=8, kv_heads=4, vocab_size=512)
MIXTURE = ModelSpec(
    family="qwen3_moe",
    layers=8,
    heads=8,
    kv_heads=4,
    vocab_size=512,
    experts=ExpertsSpec(count=8, ffn_hidden=64, shared_ffn_hidden=64),
)
SEQUENCE, BATCH = 256, 64
sizes = st.sampled_from([1, 2, 3, 4, 8])
any_layout = st.builds(
    Layout,
    nodes=st.sampled_from([1, 2]),
    processes=st.sampled_from([1, 2, 4, 6, 8]),
    tensor=sizes,
    pipeline=sizes,
    virtual_pipeline=sizes,
    context=sizes,
    expert=sizes,
    expert_tensor=sizes,
    sequence_parallel=st.booleans(),
    distributed_optimizer=st.booleans(),
    micro_batch=st.sampled_from([1, 2, 3, 8]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    device=st.sampled_from([None, "H100", "A100-80GB"]),
)


def wrong_with(layout: Layout, model: ModelSpec = DENSE) -> list[str]:
    return [problem.path for problem in layout.problems_with(model, model.vocab_size, SEQUENCE, {BATCH})]


# -- one layout --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        (Layout(), "DP1"),
        (Layout(processes=2, tensor=2), "TP2"),
        (Layout(processes=8, tensor=2, pipeline=2, sequence_parallel=True), "TP2-PP2-DP2-SP"),
        (Layout(processes=8, pipeline=2, virtual_pipeline=2, context=2), "CP2-PP2x2-DP2"),
        (Layout(nodes=2, processes=8, expert=8, distributed_optimizer=True), "EP8-DP16-DO"),
        (Layout(processes=2, expert=2, expert_tensor=2, recompute="full"), "EP2-ETP2-DP2-recompute-full"),
    ],
)
def test_a_layout_s_name(layout: Layout, name: str) -> None:
    assert layout.name() == name


@pytest.mark.parametrize("model", [DENSE, MIXTURE])
@pytest.mark.parametrize("world", [1, 6, 8, 16])
def test_no_two_layouts_of_as_many_processes_have_one_name(world: int, model: ModelSpec) -> None:
    found = list(layouts(Layout(processes=world), model))
    assert len({layout.name() for layout in found}) == len(found)


@given(any_layout)
def test_a_layout_s_words_are_what_a_recipe_says(layout: Layout) -> None:
    assert Layout.model_validate(yaml.safe_load(layout.as_yaml())["layout"]) == layout


@given(any_layout, any_layout)
def test_distance_tells_layouts_apart(one: Layout, other: Layout) -> None:
    other = other.model_copy(update={name: getattr(one, name) for name in ("nodes", "processes", "device")})
    assert one.distance(other) == pytest.approx(other.distance(one))
    assert (one.distance(other) == 0) == (one == other)


def test_a_layout_is_no_part_of_a_run_s_identity() -> None:
    one, other = PretrainSpec(), PretrainSpec(layout=Layout(processes=4, micro_batch=2, device="H100"))
    assert one.identity() == other.identity()


# -- invalid layouts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "model", "field", "words"),
    [
        (Layout(processes=4, tensor=3), DENSE, "processes", "must be a multiple of tensor x pipeline x context (3)"),
        (Layout(processes=8, tensor=8), DENSE, "tensor", "model.kv_heads (4)"),
        (Layout(processes=3, tensor=3, micro_batch=1), DENSE, "tensor", "model.heads (8)"),
        (Layout(processes=3, pipeline=3, micro_batch=1), DENSE, "pipeline", "model.layers"),
        (Layout(processes=4, pipeline=4, virtual_pipeline=4), DENSE, "pipeline", "model.layers by pipeline x virtual"),
        (Layout(processes=2, virtual_pipeline=2), DENSE, "virtual_pipeline", "only with pipeline > 1"),
        (Layout(processes=6, context=3, tensor=2), DENSE, "context", "sequence_length by 2 x context"),
        (Layout(processes=2, sequence_parallel=True), DENSE, "sequence_parallel", "only with tensor > 1"),
        (Layout(processes=2, expert=2), DENSE, "expert", "only with model.experts"),
        (Layout(processes=2, expert_tensor=2), DENSE, "expert_tensor", "only with model.experts"),
        (Layout(processes=3, expert=3, micro_batch=1), MIXTURE, "expert", "model.experts.count (8)"),
        (Layout(processes=4, expert=8), MIXTURE, "expert", "tensor x context x data, by expert x expert_tensor (4)"),
        (Layout(processes=4, expert=2, expert_tensor=2), MIXTURE, "expert_tensor", "must divide tensor (1)"),
        (Layout(processes=2, tensor=2, expert=2), MIXTURE, "sequence_parallel", "required with experts"),
        (Layout(processes=2, tensor=2, sequence_parallel=True), MIXTURE, "expert_tensor", "as tensor (2), or expert"),
        (Layout(processes=3, micro_batch=1), DENSE, "micro_batch", "data parallel size (3), must divide the global"),
        (Layout(pipeline=4, processes=4, virtual_pipeline=2, micro_batch=32), DENSE, "virtual_pipeline", "(2) must"),
    ],
)
def test_what_is_not_legal_is_named_with_its_reason(layout: Layout, model: ModelSpec, field: str, words: str) -> None:
    found = layout.problems_with(model, model.vocab_size, SEQUENCE, {BATCH})
    assert any(problem.path == field and words in problem.allowed for problem in found), found


def test_a_vocabulary_that_is_not_known_yet_is_no_problem() -> None:
    layout = Layout(processes=4, tensor=4)
    assert layout.problems_with(DENSE, None, SEQUENCE, {BATCH}) == []
    assert [problem.path for problem in layout.problems_with(DENSE, 510, SEQUENCE, {BATCH})] == ["tensor"]


def test_a_growing_batch_must_be_shared_out_at_each_size_and_is_reported_once() -> None:
    warmup = BatchWarmup(start=8, increment=4, steps=100)
    spec = PretrainSpec(model=DENSE, global_batch=64, batch_warmup=warmup, layout=Layout(processes=8, micro_batch=1))
    (problem,) = spec.layout_problems(512)
    assert "must divide the global batch (12)" in problem.allowed  # 8 is valid


@given(any_layout, st.sampled_from([DENSE, MIXTURE]))
def test_a_legal_layout_shares_out_everything_without_remainder(layout: Layout, model: ModelSpec) -> None:
    if wrong_with(layout, model):
        return
    assert layout.tensor * layout.context * layout.pipeline * layout.data == layout.world
    assert BATCH % (layout.data * layout.micro_batch) == 0
    assert model.layers % (layout.pipeline * layout.virtual_pipeline) == 0
    assert (layout.tensor * layout.context * layout.data) % (layout.expert * layout.expert_tensor) == 0


# -- alternatives ------------------------------------------------------------------------------------


def test_the_layouts_of_a_large_cluster_are_looked_through_in_a_moment() -> None:
    assert len(list(layouts(Layout(nodes=4096, processes=8), MIXTURE))) < 50_000


@pytest.mark.parametrize("world", [1, 2, 4, 8])
@pytest.mark.parametrize("model", [DENSE, MIXTURE])
def test_every_legal_layout_is_among_those_to_choose_from(model: ModelSpec, world: int) -> None:
    powers = [1, 2, 4, 8]
    names = ("tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor", "sequence_parallel")
    choices = itertools.product(*([powers] * (len(names) - 1)), [False, True])
    every = (
        Layout.model_validate({"processes": world, "micro_batch": 1} | dict(zip(names, sizes, strict=True)))
        for sizes in choices
    )
    legal = {layout.name() for layout in every if not wrong_with(layout, model)}
    listed = (layout for layout in layouts(Layout(processes=world, micro_batch=1), model))
    assert {layout.name() for layout in listed if not wrong_with(layout, model)} == legal


@settings(deadline=None)
@given(any_layout, st.sampled_from([DENSE, MIXTURE]))
def test_the_nearest_layout_is_legal_and_none_is_nearer(layout: Layout, model: ModelSpec) -> None:
    def works(candidate: Layout) -> bool:
        return not wrong_with(candidate, model)

    found = nearest(layout, model, works)
    others = [candidate for candidate in layouts(layout, model) if works(candidate)]
    if found is None:
        assert not others
        return
    assert works(found)
    assert (found.nodes, found.processes, found.device) == (layout.nodes, layout.processes, layout.device)
    assert all(layout.distance(found) <= layout.distance(other) for other in others)
    assert found == layout or not works(layout)


def test_the_first_problem_names_the_layout_that_works() -> None:
    spec = PretrainSpec(model=DENSE, global_batch=64, layout=Layout(processes=8, tensor=8, micro_batch=8))
    first, *others = spec.layout_problems(512)
    assert "; layout: {processes: 8, tensor: 4, micro_batch: 8} works" in first.allowed
    assert not any("works" in problem.allowed for problem in others)


def test_where_nothing_works_no_layout_is_named() -> None:
    spec = PretrainSpec(model=DENSE, global_batch=64, layout=Layout(processes=7, micro_batch=1))
    assert not any("works" in problem.allowed for problem in spec.layout_problems(512))


def test_a_thousand_processes_are_answered_within_seconds() -> None:
    wide: dict[str, Any] = {"layers": 96, "heads": 96, "kv_heads": 8, "vocab_size": 131072}
    spec = PretrainSpec(
        model=ModelSpec(**wide, family="qwen3_moe", experts=ExpertsSpec(count=128, ffn_hidden=1024)),
        global_batch=4096,
        layout=Layout(nodes=128, processes=8, tensor=3),
    )
    assert "works" in spec.layout_problems(131072)[0].allowed
