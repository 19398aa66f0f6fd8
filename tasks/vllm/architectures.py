"""The architectures in vLLM's registry and the head sizes of its kernels, read without importing vLLM, which takes
seconds.

An architecture that the registry does not list runs on Transformers' code, if that passes attention through an
interface. If vLLM or Transformers is not installed, every architecture counts as supported.
"""

import ast
import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

# supported by both vllm 0.27's v1/attention/backends/cpu_attn.py and flash_attn.py
HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)
MODELS = "model_executor/models"
REGISTRY = f"{MODELS}/registry.py"
MLP_IMPORT = re.compile(r"^from \.(\w+) import (?:\([^)]*|.*)MLP\b", re.MULTILINE)
# Messages in the code of classes that refuse other activations, or windows in some of the layers
SILU_ONLY = "Only silu is supported"
SAME_WINDOWS = "Sliding window for some but all layers is not supported"
GENERATIVE = {"_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS"}


def has_architecture(name: str, model_type: str) -> bool:
    """Return whether vLLM has a class for config.json's `architectures` and `model_type`."""
    listed = listed_architectures()
    return not listed or name in listed or runs_on_transformers(model_type)


def unsupported(name: str, config: Mapping[str, Any]) -> list[str]:
    """Return the settings in config.json that vLLM's class for the architecture refuses when it is built."""
    code = _code(listed_architectures().get(name, ""))
    layer = code + "".join(_code(module) for module in MLP_IMPORT.findall(code))
    problems = []
    if SILU_ONLY in layer and (activation := config.get("hidden_act", "silu")) != "silu":
        problems.append(f"hidden_act: silu, the only activation of vLLM's {name}; this one: {activation}")
    layers, first = (config.get(field) for field in ("num_hidden_layers", "max_window_layers"))
    mixed = len(set(config.get("layer_types") or ())) > 1 or (config.get("use_sliding_window") and first)
    if SAME_WINDOWS in code and mixed and first != layers:
        problems.append(
            f"attention windows in all layers or none, for vLLM's {name}; this one: from layer {first} of {layers} on"
        )
    return problems


@cache
def listed_architectures() -> dict[str, str]:
    """Return the module of each name in vLLM's registry, which consists of literal dictionaries; empty if vLLM is not
    installed."""
    path = _package("vllm") / REGISTRY
    if not path.is_file():
        return {}
    modules: dict[str, str] = {}
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict() as table) if name in GENERATIVE:
                modules |= {architecture: entry[0] for architecture, entry in ast.literal_eval(table).items()}
    return modules


@cache
def runs_on_transformers(model_type: str) -> bool:
    """Return whether vLLM can run Transformers' class (`PreTrainedModel.is_backend_compatible`)."""
    path = _package("transformers") / "models" / model_type / f"modeling_{model_type}.py"
    if not re.fullmatch(r"\w+", model_type) or not path.is_file():
        return True  # not known
    return "_supports_attention_backend = True" in path.read_text(encoding="utf-8")


def _code(module: str) -> str:
    """Return the source of a module of vLLM's models; empty if it does not exist."""
    path = _package("vllm") / MODELS / f"{module}.py"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else Path("/nowhere")
