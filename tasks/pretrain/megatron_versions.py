"""What differs between the versions of Megatron-Core that Baton runs on: 0.16.1 (Python 3.11) and 0.19.2 (3.12).

Everything else is written for both, and nothing else asks for the version. When 0.16 goes, so does this module: its
users then call what the newer branches call.
"""

from functools import partial
from importlib.metadata import version
from typing import Any

from tasks.pretrain import megatron  # noqa: F401  before megatron.core

# isort: split
from megatron.core.dist_checkpointing.strategies import torch as torch_strategies
from megatron.core.transformer.moe import moe_utils
from torch import Tensor

RECENT = tuple(map(int, version("megatron-core").split(".")[:2])) >= (0, 19)

if RECENT:
    from megatron.core.transformer.moe import moe_logging

    # "mcore" is what 0.16 does. The default, "nvrx", writes with a package that Baton does without
    ASYNC_SAVE = {"async_strategy": "mcore"}
    # that it is to go one day is nothing that a run's log need say on every rank
    torch_strategies._logged_mcore_async_deprecation = True
else:
    ASYNC_SAVE = {}
    # 0.16 forgets this name where Transformer Engine is not installed, and a router that computes in fp32 then fails
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None


def submodules(spec: Any) -> Any:
    """The parts that a layer specification names, to be replaced in place: a ModuleSpec's, or, of the feed-forward
    and the experts in 0.19, a functools.partial's."""
    return spec.keywords["submodules"] if isinstance(spec, partial) else spec.submodules


def moe_losses(micro_batches: int, layers: int) -> dict[str, Tensor]:
    """A mixture's auxiliary losses since the last call by name, means over `layers` and `micro_batches`. Every rank
    calls it: they are reduced over the ranks."""
    found: dict[str, Tensor] = {}
    report = moe_logging.get_moe_metrics_tracker().report if RECENT else moe_utils.track_moe_metrics
    report(1 / micro_batches, 0, total_loss_dict=found, num_layers=layers)
    return found


def forget_moe_losses() -> None:
    """Drop what was recorded for a model that is gone, with its number of layers and its process groups."""
    if RECENT:
        moe_logging.destroy_moe_metrics_tracker()
    else:
        moe_utils.get_moe_layer_wise_logging_tracker().clear()
