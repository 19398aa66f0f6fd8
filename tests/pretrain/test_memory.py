"""The memory estimate, compared with the real model's tensors, and its invariants."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.hardware.memory import CPU, GPU, Memory
from baton.tasks.models.model_spec import ExpertsSpec, ModelSpec
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.memory import estimate
from baton.tasks.pretrain.spec import PretrainSpec
from tests.pretrain.alone import alone
from tests.pretrain.footprint import footprint
from tests.pretrain.shapes import LLAMA_3_8B, QWEN3_30B_A3B
from tests.source import ROOT

SHAPE: dict[str, Any] = {
    "layers": 4, "hidden": 96, "heads": 4, "kv_heads": 2, "head_dim": 32, "ffn_hidden": 256, "max_positions": 1024,
    "vocab_size": 512,
}  # fmt: skip
EXPERTS = ExpertsSpec(count=8, top_k=2, ffn_hidden=96, shared_ffn_hidden=64)
MODELS = {
    "grouped": ModelSpec(**SHAPE),
    "plain": ModelSpec(**SHAPE | {"family": "llama", "kv_heads": 4}),
    "biased, untied": ModelSpec(**SHAPE | {"family": "qwen2", "tied_embeddings": False}),
    "large vocabulary": ModelSpec(**SHAPE | {"layers": 1, "vocab_size": 8192}),
    "window": ModelSpec(**SHAPE | {"family": "mistral", "sliding_window": 64}),
    "experts": ModelSpec(**SHAPE | {"family": "qwen3_moe", "experts": EXPERTS}),
}


def spec(model: str, **changes: Any) -> PretrainSpec:
    plain: dict[str, Any] = {
        "model": MODELS[model],
        "sequence_length": 256,
        "global_batch": 8,
        "layout": Layout(micro_batch=2),
    }
    return PretrainSpec(**(plain | changes))


def assert_close(estimated: Memory, measured: Memory) -> None:
    for part in ("weights", "gradients", "optimizer"):  # these are plain sums; a buffer is rounded up a little
        assert getattr(estimated, part) == pytest.approx(getattr(measured, part), rel=0.01), part
    assert 0.85 < estimated.activations / measured.activations < 1.15
    assert 0.85 < estimated.total / measured.total < 1.15


ALONE = {
    "grouped queries": spec("grouped"),
    "grouped queries, fp32": spec("grouped", precision="fp32"),
    "as many keys as queries": spec("plain"),
    "as many keys as queries, fp32": spec("plain", precision="fp32"),
    "biases, an output of its own": spec("biased, untied"),
    "mostly logits": spec("large vocabulary"),
    "mostly logits, fp32": spec("large vocabulary", precision="fp32"),
    "a sliding window": spec("window"),
    "documents masked": spec("grouped", mask_documents=True),
    "experts": spec("experts"),
    "experts, fp32": spec("experts", precision="fp32"),
    "attention recomputed": spec("grouped", layout=Layout(micro_batch=2, recompute="selective")),
    "all recomputed": spec("grouped", layout=Layout(micro_batch=2, recompute="full")),
    "experts, all recomputed": spec("experts", layout=Layout(micro_batch=2, recompute="full")),
    "one sequence at a time": spec("grouped", layout=Layout(micro_batch=1)),
    "short sequences": spec("grouped", sequence_length=64, layout=Layout(micro_batch=8)),
    "long sequences": spec("plain", sequence_length=1024, layout=Layout(micro_batch=1)),
}


@pytest.fixture(scope="module")
def one_process() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors this small are slower on two
    with alone():
        yield
    torch.set_num_threads(threads)


@pytest.mark.long
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("name", ALONE)
def test_one_process_takes_what_is_estimated(name: str) -> None:
    assert_close(estimate(ALONE[name], _vocabulary(ALONE[name]), CPU), footprint(ALONE[name]))


TOGETHER = {
    "tensor parallel": spec("grouped", layout=Layout(processes=2, tensor=2, micro_batch=2)),
    "sequence parallel": spec("grouped", layout=Layout(processes=2, tensor=2, sequence_parallel=True, micro_batch=2)),
    "pipeline": spec("grouped", layout=Layout(processes=2, pipeline=2, micro_batch=2)),
    "pipeline, an output of its own": spec("biased, untied", layout=Layout(processes=2, pipeline=2, micro_batch=1)),
    "interleaved pipeline": spec("plain", layout=Layout(processes=2, pipeline=2, virtual_pipeline=2, micro_batch=2)),
    "pipeline, all recomputed": spec("plain", layout=Layout(processes=2, pipeline=2, recompute="full", micro_batch=2)),
    "context parallel": spec("grouped", layout=Layout(processes=2, context=2, micro_batch=2)),
    "distributed optimizer": spec("grouped", layout=Layout(processes=2, distributed_optimizer=True, micro_batch=2)),
    "distributed optimizer, fp32": spec(
        "grouped", precision="fp32", layout=Layout(processes=2, distributed_optimizer=True, micro_batch=2)
    ),
    "experts apart": spec("experts", layout=Layout(processes=2, expert=2, distributed_optimizer=True, micro_batch=2)),
    "experts apart, tensor parallel": spec(
        "experts", layout=Layout(processes=2, expert=2, tensor=2, sequence_parallel=True, micro_batch=2)
    ),
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Memory]]:
    """The footprints of both ranks on two processes."""
    folder = tmp_path_factory.mktemp("footprints")
    (folder / "specs.json").write_text(json.dumps([expected.model_dump(mode="json") for expected in TOGETHER.values()]))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    completed = subprocess.run(
        [*torchrun, "-m", "tests.pretrain.footprint", str(folder)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    found = json.loads((folder / "footprints.json").read_text())
    return {name: [Memory(**rank) for rank in ranks] for name, ranks in zip(TOGETHER, found, strict=True)}


@pytest.mark.long
@pytest.mark.parametrize("name", TOGETHER)
def test_the_worst_of_two_processes_takes_what_is_estimated(name: str, measured: dict[str, list[Memory]]) -> None:
    worst = max(measured[name], key=lambda memory: memory.total)
    assert_close(estimate(TOGETHER[name], _vocabulary(TOGETHER[name]), CPU), worst)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("model", ["grouped", "plain", "experts", "window"])
def test_a_gpu_takes_what_is_estimated(model: str, recompute: str) -> None:
    large = {"hidden": 1024, "head_dim": 128, "heads": 8, "ffn_hidden": 3072, "vocab_size": 32768}
    expected = PretrainSpec(
        model=MODELS[model].model_copy(update=large),
        sequence_length=1024,
        global_batch=8,
        layout=Layout.model_validate({"micro_batch": 2, "recompute": recompute}),
    )
    assert_close(estimate(expected, 32768, GPU), footprint(expected))


# -- invariants ----------------------------------------------------------------------


@given(
    model=st.sampled_from(["grouped", "plain", "biased, untied", "experts"]),
    precision=st.sampled_from(["bf16", "fp32"]),
    layout=st.builds(
        Layout,
        processes=st.sampled_from([8, 16]),
        pipeline=st.sampled_from([1, 2]),  # at least two layers per stage
        micro_batch=st.sampled_from([1, 2]),
        recompute=st.sampled_from(["none", "selective"]),
    ),
)
def test_what_should_save_memory_does(model: str, precision: str, layout: Layout) -> None:
    def total(**changes: Any) -> int:
        expected = spec(model, global_batch=64, precision=precision, layout=layout.model_copy(update=changes))
        assert not expected.layout_problems(512)
        return estimate(expected, 512, GPU).total

    split = {"tensor": 2, "sequence_parallel": True, **({"expert_tensor": 2} if model == "experts" else {})}
    assert total(recompute="full") < total()
    assert total(distributed_optimizer=True) < total()
    assert total(micro_batch=2 * layout.micro_batch) > total()
    assert total(**split) < total()


def test_the_stages_of_a_pipeline_have_all_the_weights_between_them() -> None:
    """The worst stage has its share of the layers and an embedding, for 8 B parameters on 4 stages."""
    expected = PretrainSpec(
        model=LLAMA_3_8B, sequence_length=8192, global_batch=16, layout=Layout(processes=4, pipeline=4, micro_batch=1)
    )
    table = 128256 * 4096
    assert estimate(expected, 128256).weights == 2 * ((LLAMA_3_8B.parameters(128256) - 2 * table - 4096) // 4 + table)


def test_a_model_s_state_is_18_bytes_a_weight_in_16_bits_and_16_in_32() -> None:
    """These are bf16 weights, fp32 gradients, fp32 master weights and two moments, as documented by Megatron."""
    weights = MODELS["plain"].parameters(512)
    for precision, each in (("bf16", 2 + 4 + 4 + 8), ("fp32", 4 + 4 + 8)):
        found = estimate(spec("plain", precision=precision), 512)
        assert found.weights + found.gradients + found.optimizer == each * weights


def test_experts_are_spread_over_the_ranks() -> None:
    """30B-A3B on 32 GPUs, with experts in groups of 8; the weights are computed by hand."""
    layout = Layout(nodes=4, processes=8, expert=8, distributed_optimizer=True, micro_batch=1)
    found = estimate(PretrainSpec(model=QWEN3_30B_A3B, sequence_length=4096, global_batch=512, layout=layout), 151936)
    experts = 48 * 128 * 3 * 2048 * 768
    rest = QWEN3_30B_A3B.parameters(151936) - experts
    assert found.weights == 2 * (experts // 8 + rest)
    assert found.optimizer == 12 * (experts // 8 // 4 + rest // 32)  # 4 ranks have the same experts


def _vocabulary(expected: PretrainSpec) -> int:
    assert expected.model.vocab_size
    return expected.model.vocab_size
