"""The hooks into Megatron-Core. If a test fails because Megatron changed, it names the hook that can be removed.

tests/convert/test_versions.py moves a run from one version to the other; tests/pretrain/test_reshard.py describes
the limits of Megatron's own optimizer checkpoints.
"""

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from baton.tasks.models.model_spec import ExpertsSpec
from baton.tasks.pretrain import megatron_hooks, megatron_on_cpu
from baton.tasks.pretrain.batches import build_datasets, micro_batches
from baton.tasks.pretrain.megatron_hooks import RECENT
from baton.tasks.pretrain.model import build_model, transformer_config
from baton.tasks.pretrain.train_step import Training
from tests.pretrain.alone import alone
from tests.pretrain.footprint import peak
from tests.pretrain.tiny import MODEL, VOCABULARY, make_shards, tiny_spec
from tests.source import ROOT, files, imports

# isort: split
import megatron.core
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.strategies import async_utils, filesystem_async
from megatron.core.dist_checkpointing.strategies import torch as torch_strategies
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.transformer.moe import moe_utils, token_dispatcher

HOOKS = {"megatron_hooks.py", "megatron_on_cpu.py"}
VERSION_CHECK = re.compile(
    r"""version\(\s*["']megatron|megatron\.core(\.package_info)?\s*(\.|import\s+)__version__|RECENT\b"""
)


def test_only_the_hooks_check_the_version() -> None:
    checking = {path.name for path in files("infra", "tasks", "workflows") if VERSION_CHECK.search(path.read_text())}
    assert checking == {"megatron_hooks.py"}


def private_names(path: Path) -> list[str]:
    """Return the private names that a file imports, reads from another object, or overrides in one of Megatron's
    classes."""
    found = []
    megatrons: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("megatron.core"):
                megatrons |= {name.asname or name.name for name in names}
                found += [name.name for name in names]
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner not in ("self", "torch"):
                found.append(name)
            case ast.ClassDef(bases=bases, body=body) if {
                ast.unparse(base).split(".")[0] for base in bases
            } & megatrons:
                found += [item.name for item in body if isinstance(item, ast.FunctionDef)]
    return [name for name in found if name.startswith("_") and not name.startswith("__")]


def test_only_the_hooks_use_private_names_of_megatron() -> None:
    users = [
        path for path in files("infra", "tasks", "workflows") if any("megatron.core" in name for name in imports(path))
    ]
    assert len(users) > 10
    assert {path.name: names for path in users if path.name not in HOOKS and (names := private_names(path))} == {}
    assert private_names(ROOT / "tasks/pretrain/megatron_hooks.py")  # shows that private_names finds some


def test_the_hooks_are_for_the_pinned_versions() -> None:
    """If both lists pin the same version, the branches for the other can be removed."""
    lists = [ROOT / "requirements.txt", ROOT / "images" / "gpu.txt"]
    pinned = {pin for path in lists for pin in re.findall(r"^megatron-core==(\S+)", path.read_text(), re.MULTILINE)}
    assert len(pinned) == 2
    assert all(pin in (megatron_hooks.__doc__ or "") for pin in pinned)


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in megatron_on_cpu._REWRITES], ids=lambda it: it.pattern)
def test_megatron_still_names_cuda(pattern: re.Pattern[str]) -> None:
    sources = Path(megatron.core.__path__[0]).rglob("*.py")
    assert any(pattern.search(path.read_text()) for path in sources)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (token_dispatcher, "cuda_dtoh_stream"),  # megatron_on_cpu._splits_as_numbers
        (rope_utils, "fused_apply_rotary_pos_emb = None"),
        (filesystem_async, "ctx.Manager().Queue()"),  # SaveStrategy.async_save
        (async_utils, "ctx.Process("),  # SaveStrategy.request
    ],
    ids=["all-to-all's copies", "rotary embedding", "queue of results", "writing processes"],
)
def test_megatron_still_does_it_another_way(module: ModuleType, words: str) -> None:
    assert words in inspect.getsource(module)


@pytest.mark.skipif(not RECENT, reason="0.19 only")
def test_0_19_still_prefers_nvrx_and_logs_that_mcore_is_deprecated() -> None:
    default = inspect.signature(torch_strategies.TorchDistSaveShardedStrategy.async_save).parameters["async_strategy"]
    assert default.default == "nvrx"
    assert "_logged_mcore_async_deprecation" in inspect.getsource(torch_strategies)


@pytest.mark.skipif(RECENT, reason="0.16 only")
def test_0_16_still_lacks_a_name_without_transformer_engine() -> None:
    assert "te_general_gemm = None" not in inspect.getsource(moe_utils)


def test_destroying_the_process_groups_still_leaves_the_experts_loss_scale() -> None:
    with alone():
        moe_utils.MoEAuxLossAutoScaler.main_loss_backward_scale = torch.ones(1)
        parallel_state.destroy_model_parallel()
        assert moe_utils.MoEAuxLossAutoScaler.main_loss_backward_scale is not None
    assert moe_utils.MoEAuxLossAutoScaler.main_loss_backward_scale is None


def test_the_optimizer_still_has_no_public_name_for_a_rank_s_range() -> None:
    public = [name for name in dir(DistributedOptimizer) if not name.startswith("_")]
    assert not [name for name in public if "range" in name]


def test_gptmodel_still_holds_all_logits() -> None:
    with alone():
        model = build_model(MODEL, transformer_config(MODEL, "fp32"), 16384)
        model.__class__ = GPTModel
        tokens = torch.zeros(2, 32, dtype=torch.long)
        with peak() as largest, torch.no_grad():
            model(tokens, torch.arange(32).expand(2, 32), None, labels=tokens)
    assert largest() >= 2 * 32 * 16384 * 4


def mixture(layers: int, folder: Path) -> dict[str, float]:
    """Return a mixture's auxiliary losses after one step; with more than two layers, they are not read."""
    experts = ExpertsSpec(count=4, ffn_hidden=32)
    spec = tiny_spec(model=MODEL.model_copy(update={"family": "qwen3_moe", "experts": experts, "layers": layers}))
    with alone():
        dataset, _ = build_datasets(spec, [folder / "shards"], VOCABULARY, folder / "index")
        training = Training(spec, VOCABULARY)
        batches = micro_batches(dataset, 0, 4, 2)
        training.gradients(batches)
        return training.balance(len(batches)) if layers == 2 else {}


def test_a_model_s_auxiliary_losses_are_its_own(tmp_path: Path) -> None:
    """Megatron records the losses per process, layer by layer."""
    make_shards(tmp_path / "shards")
    alone_there = mixture(2, tmp_path)
    mixture(3, tmp_path)
    assert mixture(2, tmp_path) == alone_there
    assert alone_there.keys() == {"seq_load_balancing_loss"}
    assert alone_there["seq_load_balancing_loss"] > 0
