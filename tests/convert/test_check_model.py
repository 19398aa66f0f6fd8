"""The tensors of a model are compared with those of its class; only the headers of its files are read."""

from pathlib import Path
from typing import Any, NoReturn

import pytest

from baton.tasks.convert.check_model import check_model
from baton.tasks.models.hf_files import model_in
from tests.shapes import shapes_only

MIXTURE: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512, "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "max_position_embeddings": 256, "eos_token_id": 0,
    "architectures": ["Qwen3MoeForCausalLM"],
}  # fmt: skip


def test_no_weight_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the experts' weights are read, which Transformers merges; they take hundreds of gigabytes in a large
    model."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("a file was opened")

    files = model_in(shapes_only(tmp_path, MIXTURE))
    monkeypatch.setattr("transformers.modeling_utils.safe_open", refuse)
    checked = check_model(tmp_path, files)
    assert checked.architecture == "Qwen3MoeForCausalLM"
    assert not checked.renamed and checked.unused == []
