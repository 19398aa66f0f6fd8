"""Read back the weights of a live vLLM model under the names of its Hugging Face model.

vLLM fuses layers (q, k and v are one), and its CPU build repacks their weights and drops the originals. A layer is read
by multiplying it with the identity matrix, which is exact: every sum has at most one nonzero term.
"""

from collections.abc import Iterator
from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

from baton.tasks.vllm.tensor_digests import SORTED, in_order

COLUMNS = 1024  # columns of a weight that are read at once


def named_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, weight) of a vLLM model that is entirely in this process. An embedding that is also the output layer
    is yielded twice, since both may have copies. Fused experts keep vLLM's names. For a layer that is also fused in the
    model's files, but not as in vLLM (GPT-NeoX: by head), the sorted values are yielded in addition."""
    fused: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    for path, module in model.named_modules():
        parent, _, leaf = path.rpartition(".")
        if isinstance(module, LinearBase):
            sizes, names = module.output_partition_sizes, fused.get(leaf, [leaf])
            weights = {"weight": _weight(module), "bias": module.bias}
            for kind, tensor in weights.items():
                if tensor is not None and len(names) == len(sizes):
                    parts = tensor.data.split(sizes)
                    yield from zip((f"{parent}.{name}.{kind}" for name in names), parts, strict=True)
                elif tensor is not None:  # also one tensor in the model's files, maybe with its rows in another order
                    yield f"{path}.{kind}", tensor.data
                    yield f"{path}.{kind}{SORTED}", in_order(tensor.data)
        elif isinstance(module, VocabParallelEmbedding):  # vLLM pads the rows of these
            weight, rows = module.weight.data, module.org_vocab_size
            yield f"{path}.weight", weight[:rows]
            if isinstance(module, ParallelLMHead) or hasattr(module, "cpu_linear"):
                yield f"{path}.weight", _product(module, weight.shape[1], weight.dtype)[:rows]
        else:
            for name, parameter in module.named_parameters(recurse=False):
                yield f"{path}.{name}", parameter.data


def _weight(layer: LinearBase) -> torch.Tensor:
    """Return the weight of a layer. The CPU build has no product for those layers of a state space model that read
    their weight directly."""
    if layer.weight.device.type == "cpu" and not hasattr(layer, "cpu_linear"):
        return layer.weight  # type: ignore[no-any-return]
    return _product(layer, layer.input_size, layer.params_dtype)


def _product(layer: Any, inputs: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the weight [outputs, inputs] by which a layer multiplies."""
    device, columns = next(layer.parameters()).device, []
    for first in range(0, inputs, COLUMNS):
        identity = torch.zeros(min(COLUMNS, inputs - first), inputs, dtype=dtype, device=device)
        identity[:, first:].fill_diagonal_(1)
        columns.append(layer.quant_method.apply(layer, identity, bias=None))
    return torch.cat(columns).t()
