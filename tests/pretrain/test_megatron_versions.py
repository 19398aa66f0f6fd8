"""The two versions of Megatron-Core. tests/convert/test_versions.py takes a run from one to the other."""

import re
from pathlib import Path

from tasks.pretrain import megatron_versions
from tasks.pretrain.batches import build_datasets, micro_batches
from tasks.pretrain.model_spec import ExpertsSpec
from tasks.pretrain.training import Training
from tests.pretrain.alone import alone
from tests.pretrain.tiny import MODEL, VOCABULARY, make_shards, tiny_spec
from tests.source import ROOT, files

ASKS = re.compile(r"""version\(\s*["']megatron|megatron\.core(\.package_info)?\s*(\.|import\s+)__version__|RECENT\b""")


def test_nothing_else_asks_for_the_version() -> None:
    asking = {path.name for path in files("infra", "tasks", "workflows") if ASKS.search(path.read_text())}
    assert asking == {"megatron_versions.py"}


def test_it_is_for_the_versions_that_the_lists_have() -> None:
    """Once the lists have the same one, the module can go."""
    lists = [ROOT / "requirements.txt", ROOT / "images" / "gpu.txt"]
    pinned = {pin for path in lists for pin in re.findall(r"^megatron-core==(\S+)", path.read_text(), re.MULTILINE)}
    assert len(pinned) == 2
    assert all(pin in (megatron_versions.__doc__ or "") for pin in pinned)


def mixture(layers: int, folder: Path) -> dict[str, float]:
    """A mixture's auxiliary losses after one step; with more than two layers they are left where they are."""
    experts = ExpertsSpec(count=4, ffn_hidden=32)
    spec = tiny_spec(model=MODEL.model_copy(update={"family": "qwen3_moe", "experts": experts, "layers": layers}))
    with alone():
        dataset, _ = build_datasets(spec, [folder / "shards"], VOCABULARY, folder / "index")
        training = Training(spec, VOCABULARY)
        batches = micro_batches(dataset, 0, 4, 2)
        training.gradients(batches)
        return training.balance(len(batches)) if layers == 2 else {}


def test_a_model_s_auxiliary_losses_are_its_own(tmp_path: Path) -> None:
    """Megatron keeps them for the process, layer by layer."""
    make_shards(tmp_path / "shards")
    alone_there = mixture(2, tmp_path)
    mixture(3, tmp_path)
    assert mixture(2, tmp_path) == alone_there
    assert alone_there.keys() == {"seq_load_balancing_loss"}
    assert alone_there["seq_load_balancing_loss"] > 0
