"""Values that overflow a type are an error that names them; they never become infinity."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from baton.tasks.models.errors import ConversionError
from tests.convert.models import make
from tests.convert.test_round_trip import assert_same, tensors, there_and_back, to_hugging_face, to_megatron

NORM = "model.norm.weight"
Q = "model.layers.{}.self_attn.q_norm.weight"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make("qwen3", tmp_path / "model", torch.float32)


def change(model: Path, name: str, number: float) -> None:
    found = tensors(model)
    found[name].view(-1)[3] = number
    save_file(found, model / "model.safetensors", metadata={"format": "pt"})


BIG = [("fp16", 65520.0), ("fp16", -70000.0), ("bf16", 3.4e38), ("bf16", -3.4e38)]
FITS = [("fp16", 65519.0), ("bf16", 3.3895e38), ("fp16", torch.inf), ("bf16", -torch.inf), ("fp16", torch.nan)]


@pytest.mark.parametrize(("dtype", "number"), BIG)
@pytest.mark.parametrize("when", ["on the way in", "on the way out"])
def test_a_number_that_does_not_fit_is_refused(when: str, dtype: str, number: float, model: Path) -> None:
    change(model, "model.layers.1.mlp.up_proj.weight", number)
    target = model.with_name("target")
    words = r"linear_fc1\.weight\[1\] has " + re.escape(f"{number:.6g}") + r".*choose a wider --dtype"
    if when == "on the way in":
        with pytest.raises(ConversionError, match=words):
            to_megatron(model, target, dtype=dtype)
    else:
        there = to_megatron(model, model.with_name("there"))
        with pytest.raises(ConversionError, match=words):
            to_hugging_face(there, target, dtype=dtype)
    assert not target.exists()


@pytest.mark.parametrize(("dtype", "number"), FITS)
def test_a_number_that_fits_is_rounded_and_infinity_and_nan_stay(dtype: str, number: float, model: Path) -> None:
    change(model, NORM, number)
    wanted = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    found = tensors(there_and_back(model, model.parent, dtype=dtype))
    assert_same(found, {name: tensor.to(wanted) for name, tensor in tensors(model).items()})


# Several types


def mixed(model: Path) -> Path:
    """A model with the norm of one layer in bf16, and the others in fp32."""
    found = tensors(model)
    found[Q.format(1)] = found[Q.format(1)].bfloat16()
    save_file(found, model / "model.safetensors", metadata={"format": "pt"})
    return model


def test_layers_of_several_types_are_refused_before_the_first_byte(model: Path) -> None:
    with pytest.raises(ConversionError) as caught:
        to_megatron(mixed(model), model.with_name("target"))
    assert "bfloat16: " + Q.format(1) in str(caught.value)
    assert "float32: " + Q.format(0) in str(caught.value)
    assert "--dtype" in str(caught.value)
    assert not list(model.parent.glob("target*"))


def test_layers_of_several_types_can_be_cast_to_one(model: Path) -> None:
    expected = {name: tensor.to(torch.bfloat16) for name, tensor in tensors(mixed(model)).items()}
    back = to_hugging_face(to_megatron(model, model.with_name("there"), dtype="bf16"), model.with_name("back"))
    assert_same(tensors(back), expected)


def test_experts_of_several_types_are_refused(tmp_path: Path) -> None:
    model = make("mixtral", tmp_path / "model", torch.float32)
    found = tensors(model)
    name = next(name for name in found if "layers.1." in name and "experts.3.w2" in name)
    found[name] = found[name].bfloat16()
    save_file(found, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConversionError, match=re.escape(f"bfloat16: {name}")):
        to_megatron(model, tmp_path / "target")


def test_one_kind_of_weight_may_be_of_another_type(model: Path) -> None:
    found = tensors(model)
    found |= {name: tensor.bfloat16() for name, tensor in found.items() if "norm" not in name}
    save_file(found, model / "model.safetensors", metadata={"format": "pt"})
    assert_same(tensors(there_and_back(model, model.parent)), found)
