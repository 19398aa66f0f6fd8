"""A folder of a large model without its weights: each tensor is only declared in the header of a sparse file."""

import json
from math import prod
from pathlib import Path
from typing import Any

from tests.tokenizer_folders import byte_level
from tests.tokenizer_folders import folder as tokenizer_folder

LARGEST = 2_500_000_000  # weights in a file, which take 5 GB, as on the Hub


def shapes_only(folder: Path, config: dict[str, Any]) -> Path:
    """Write a folder with this config.json, a tokenizer, and all weights as zeros in bf16, which take no disk space."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.core_model_loading import revert_weight_conversion

    tokenizer_folder(folder, byte_level())
    (folder / "config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    files: list[dict[str, tuple[int, ...]]] = [{}]
    for name, tensor in revert_weight_conversion(model, model.state_dict()).items():
        if files[-1] and sum(map(prod, files[-1].values())) + tensor.numel() > LARGEST:
            files.append({})
        files[-1][name] = tuple(tensor.shape)
    weight_map = {}
    for number, shapes in enumerate(files, 1):
        place = f"model-{number:05}-of-{len(files):05}.safetensors"
        weight_map.update(dict.fromkeys(shapes, place))
        _write(folder / place, shapes)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def _write(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": [*shape], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
