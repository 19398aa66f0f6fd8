"""The table of names and rows: every mapping is a bijection, and the names match transformers."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.convert import transfer
from baton.tasks.convert.architecture import Architecture, Experts, Latent, Rope
from baton.tasks.convert.families import FAMILIES
from baton.tasks.convert.mapping import Segment, Table, Weight, weights
from baton.tasks.convert.safetensors_files import StoredModel
from tests.convert import models

small = st.integers(1, 6)


@st.composite
def tables_and_models(draw: st.DrawFn) -> tuple[Table, Architecture]:
    """Draw the table of a family, and a model for it."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    experts, latent = None, None
    kv_heads = draw(small)
    layers = draw(small)
    if family in ("qwen3_moe", "mixtral", "deepseek_v3"):
        first = draw(st.integers(0, layers)) if family == "deepseek_v3" else 0
        experts = Experts(draw(small), 1, draw(small), shared_ffn=draw(st.integers(0, 6)), first=first)
    if family == "deepseek_v3":
        latent = Latent(draw(st.none() | small), *(draw(small) for _ in range(4)))
    model = Architecture(
        vocab=draw(small),
        layers=layers,
        hidden=draw(small),
        heads=kv_heads * draw(small),
        kv_heads=kv_heads,
        head_dim=draw(small),
        ffn=draw(small),
        max_positions=8,
        norm_eps=1e-6,
        tied=draw(st.booleans()),
        rope=Rope(10000.0),
        experts=experts,
        latent=latent,
    )
    return FAMILIES[family].table, model


def rows_of(segments: list[Segment]) -> list[tuple[int, int]]:
    """Return the part and the index in the part for each row."""
    return [(segment.part, row) for segment in segments for row in range(segment.start, segment.stop)]


def all_rows(weight: Weight) -> list[tuple[int, int]]:
    return [(part, row) for part, (_, shape) in enumerate(weight.parts) for row in range(shape[0])]


@given(tables_and_models())
def test_every_row_of_the_parts_has_one_place(found: tuple[Table, Architecture]) -> None:
    for weight in weights(*found):
        rows = rows_of(list(weight.segments))
        assert len(rows) == weight.shape[0]
        assert sorted(rows) == all_rows(weight)


@given(tables_and_models())
def test_every_name_has_one_place(found: tuple[Table, Architecture]) -> None:
    every = list(weights(*found))
    ours = [(weight.key, weight.index) for weight in every]
    theirs = [name for weight in every for name, _ in weight.parts]
    assert len(set(ours)) == len(ours)
    assert len(set(theirs)) == len(theirs)
    for weight in every:
        assert len(weight.index) == len(weight.leading)
        assert all(at < size for at, size in zip(weight.index, weight.leading, strict=True))


@given(tables_and_models())
def test_stacked_weights_are_there_for_every_layer_and_expert(found: tuple[Table, Architecture]) -> None:
    places: dict[str, set[tuple[int, ...]]] = {}
    every = list(weights(*found))
    for weight in every:
        places.setdefault(weight.key, set()).add(weight.index)
    for weight in every:
        assert len(places[weight.key]) == torch.Size(weight.leading).numel()


@given(tables_and_models(), st.integers(1, 400), st.sampled_from([2, 4]))
def test_blocks_cover_every_row_once_and_say_the_same(
    found: tuple[Table, Architecture], block: int, itemsize: int
) -> None:
    for weight in weights(*found):
        rows: list[tuple[int, int]] = []
        for start, stop, pieces in transfer.blocks(weight, itemsize, block):
            assert start == len(rows)
            for piece in pieces:
                assert start + piece.start == len(rows)
                rows += [(piece.part, piece.row + row) for row in range(piece.stop - piece.start)]
            assert stop == len(rows)
        assert rows == rows_of(list(weight.segments))


@given(tables_and_models())
def test_a_block_is_no_larger_than_a_row_must_be(found: tuple[Table, Architecture]) -> None:
    for weight in weights(*found):
        row = torch.Size(weight.shape[1:]).numel() * 2
        for start, stop, _ in transfer.blocks(weight, 2, 100):
            assert (stop - start) * row <= max(row, 100)


@pytest.mark.parametrize("name", models.FAMILIES)
def test_the_names_and_shapes_are_those_that_transformers_saves(name: str, tmp_path: Path) -> None:
    folder = models.make(name, tmp_path)
    architecture = models.architecture(folder)
    family = name.split("-", maxsplit=1)[0].replace("gemma3", "gemma3_text")
    expected = {part: shape for weight in weights(FAMILIES[family].table, architecture) for part, shape in weight.parts}
    assert expected == {name: stored.shape for name, stored in StoredModel(folder).tensors.items()}
