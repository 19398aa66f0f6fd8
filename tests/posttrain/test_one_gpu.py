"""A post-training process sees one of several GPUs."""

import ast

import pytest

from baton.tasks.posttrain.one_gpu import see_one_gpu
from tests.source import ROOT


@pytest.mark.parametrize(
    ("gpus", "visible", "left"),
    [
        (2, None, "0"),
        (2, "3,1", "3"),
        (2, "GPU-8c6b, GPU-11aa", "GPU-8c6b"),
        (1, "5", "5"),
        (0, "", ""),
        (1, None, None),
    ],
)
def test_the_first_of_several_visible_gpus_is_left(gpus: int, visible: str | None, left: str | None) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    see_one_gpu(gpus, environment)
    assert environment.get("CUDA_VISIBLE_DEVICES") == left


def test_the_engine_hides_the_others_before_any_library_can_look() -> None:
    tree = ast.parse((ROOT / "tasks/posttrain/engine.py").read_text())
    first = next(node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    assert ast.unparse(first) == "import baton.tasks.posttrain.one_gpu"
