"""A recipe's hardware requirements, checked before the start for several kinds of machines."""

import importlib.util
from typing import Any

import pytest
import yaml

from baton.tasks.convert.spec import ConvertSpec
from baton.tasks.core.spec import Problem
from baton.tasks.data.spec import TokenizerSpec
from baton.tasks.evaluate.spec import EvaluateSpec
from baton.tasks.hardware.machine import Machine
from baton.tasks.models.model_spec import ExpertsSpec, ModelSpec
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.memory import estimate
from baton.tasks.pretrain.spec import PretrainSpec
from baton.workflows.checks.run_context import RunContext
from baton.workflows.checks.table import CHECKS, FOR_A_DAG
from baton.workflows.dag.post_training import Tuning
from tests.pretrain.shapes import LLAMA_3_8B, QWEN3_30B_A3B

LAPTOP = Machine((), 16 * 2**30)
TWO_H100 = Machine(("NVIDIA H100 80GB HBM3",) * 2, 2**40)
ONE_A100 = Machine(("NVIDIA A100-SXM4-80GB",), 2**40)
UNKNOWN = Machine(("NVIDIA Tomorrow",), 2**40)
WITHOUT_TRANSFORMER_ENGINE = pytest.mark.skipif(
    importlib.util.find_spec("transformer_engine") is not None, reason="Transformer Engine is installed"
)
SPEC = PretrainSpec(model=ModelSpec(vocab_size=4096))


def looked_up(context: RunContext) -> list[Problem]:
    """Look up the hardware for a part of a recipe that has no DAG."""
    checks = [check for name, several in CHECKS.items() if name not in FOR_A_DAG for check in several]
    return [problem for check in checks for problem in check(context)]


def problems(machine: Machine, spec: PretrainSpec, **more: Any) -> list[Problem]:
    """Return the problems with the hardware. The only other problem of a recipe with pretraining alone is that its
    shards are missing."""
    context = RunContext({"pretrain": spec, **more}, machine)
    problems = looked_up(context)
    return [problem for problem in problems if problem.path.startswith("pretrain.") and "disk" not in problem.allowed]


def large(**layout: Any) -> PretrainSpec:
    """The spec of Llama 3 8B."""
    return PretrainSpec(model=LLAMA_3_8B, sequence_length=4096, global_batch=256, layout=Layout(**layout))


@pytest.mark.parametrize("machine", [LAPTOP, TWO_H100, ONE_A100, UNKNOWN])
def test_a_small_run_is_fine_anywhere(machine: Machine) -> None:
    assert problems(machine, SPEC) == []


# -- memory ------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_answered_with_each_part_and_a_layout_that_does() -> None:
    (problem,) = problems(LAPTOP, large(processes=8, micro_batch=2, device="H100"))
    assert problem.path == "pretrain.layout"
    assert (
        "on each H100 (80 GB): weights 16.1 GB, gradients 32.1 GB, optimizer 96.4 GB, activations " in problem.allowed
    )
    assert "; use layout: {processes: 8, " in problem.allowed


def test_the_layout_that_is_named_works_and_fits() -> None:
    (problem,) = problems(LAPTOP, large(processes=8, micro_batch=2, device="H100"))
    named = _layout(problem.allowed)
    assert named.processes == 8
    assert problems(LAPTOP, large(**named.model_dump())) == []
    assert estimate(large(**named.model_dump()), 128256).total < 0.95 * 80e9


def test_a_mixture_s_experts_are_spread_out() -> None:
    layout = Layout(nodes=4, processes=8, micro_batch=1, device="H100")
    spec = PretrainSpec(model=QWEN3_30B_A3B, sequence_length=4096, global_batch=256, layout=layout)
    (problem,) = problems(LAPTOP, spec)
    named = _layout(problem.allowed)
    assert named.expert > 1
    assert problems(LAPTOP, spec.model_copy(update={"layout": named})) == []


def test_more_nodes_are_named_when_nothing_else_helps() -> None:
    (problem,) = problems(LAPTOP, large(processes=1, micro_batch=1, device="H100"))
    assert _layout(problem.allowed).nodes > 1


def test_what_fits_nowhere_is_reported() -> None:
    (problem,) = problems(LAPTOP, large(processes=1, micro_batch=1, device="L4"))
    assert "no layout of it fits" in problem.allowed


def test_the_gpus_of_this_machine_are_what_it_must_fit() -> None:
    assert problems(TWO_H100, large(processes=2, micro_batch=1, recompute="full"))[0].path == "pretrain.layout"
    assert "on each A100-80GB (80 GB)" in problems(ONE_A100, large(micro_batch=1))[0].allowed


def test_without_a_gpu_the_machine_s_memory_is_shared_by_its_processes() -> None:
    (problem,) = problems(LAPTOP, large(processes=4, micro_batch=1))
    assert "on each process of this machine (4.29 GB)" in problem.allowed


def test_a_device_whose_memory_is_not_known_is_not_judged() -> None:
    assert problems(UNKNOWN, large(micro_batch=1)) == []


def test_a_vocabulary_that_the_layout_cannot_share_out_is_refused() -> None:
    spec = PretrainSpec(layout=Layout(processes=2, tensor=2))
    (problem,) = problems(LAPTOP, spec, tokenizer=TokenizerSpec(vocab_size=4097))
    assert problem.path == "pretrain.layout.tensor"
    assert "(4097)" in problem.allowed


# -- post-training -----------------------------------------------------------------------------------

HALF_A_BILLION = ModelSpec(
    layers=28, hidden=1024, heads=16, kv_heads=8, head_dim=128, ffn_hidden=3072, max_positions=2048, vocab_size=32768
)


def tuning_problems(
    device: str | None, model: ModelSpec = HALF_A_BILLION, machine: Machine = LAPTOP, **tuning: Any
) -> list[Problem]:
    """Return the problems of one post-training stage of a model, by default with 474 M weights, together with its
    evaluation."""
    pretrain = PretrainSpec(model=model, layout=Layout(device=device, micro_batch=1))
    more = {"gpu_memory_share": tuning.pop("evaluate", 0.85)} | tuning.pop("evaluators", {})
    evaluate = EvaluateSpec.model_validate({"bits_per_byte": {}} | more)
    specs = {"pretrain": pretrain, "evaluate": evaluate, "post_training": [Tuning.model_validate(tuning)]}
    problems = looked_up(RunContext(specs, machine))
    return [problem for problem in problems if " GB" in problem.allowed and "pretrain" not in problem.path]


def test_a_smaller_micro_batch_is_named_where_it_fits() -> None:
    (problem,) = tuning_problems("L4", sft={"data": "rows", "batch_size": 48, "layout": {"micro_batch": 48}})
    assert problem.path == "post_training.0.sft"
    assert "GB on one L4 (24 GB): weights 1.9 GB" in problem.allowed
    size = int(problem.allowed.partition("use layout: {micro_batch: ")[2].partition("}")[0])
    assert tuning_problems("L4", sft={"data": "rows", "batch_size": 48, "layout": {"micro_batch": size}}) == []


def test_sharding_is_named_where_it_fits() -> None:
    model = HALF_A_BILLION.model_copy(update={"layers": 4 * HALF_A_BILLION.layers})
    sft: dict[str, Any] = {"data": "rows", "layout": {"micro_batch": 1}}
    (problem,) = tuning_problems("L4", model, sft=sft)
    assert "; use layout: {processes: 2, sharding: fsdp2}, which needs " in problem.allowed
    more = {"layout": {"processes": 2, "sharding": "fsdp2", "micro_batch": 1}}
    assert tuning_problems("L4", model, sft=sft | more) == []


def test_an_adapter_is_named_where_sharding_is_not_enough() -> None:
    model = HALF_A_BILLION.model_copy(update={"layers": 4 * HALF_A_BILLION.layers})
    sft: dict[str, Any] = {"data": "rows", "batch_size": 3, "layout": {"micro_batch": 1}}
    (problem,) = tuning_problems("L4", model, sft=sft)
    assert "; use adapter: {lora: {}}, which needs " in problem.allowed
    assert tuning_problems("L4", model, sft=sft | {"adapter": {"lora": {}}}) == []


def test_cpu_offload_is_named_if_the_host_has_room_for_what_one_gpu_has_not() -> None:
    model = HALF_A_BILLION.model_copy(update={"layers": 4 * HALF_A_BILLION.layers})
    sft: dict[str, Any] = {"data": "rows", "layout": {"micro_batch": 1}}
    small, large = (Machine(("NVIDIA L4",), size) for size in (16 * 10**9, 64 * 10**9))
    (problem,) = tuning_problems(None, model, large, sft=sft)
    assert "; use layout: {sharding: fsdp2, cpu_offload: true}, which needs " in problem.allowed
    assert " and 28.7 GB of the host's memory" in problem.allowed
    offloaded = {"layout": {"micro_batch": 1, "sharding": "fsdp2", "cpu_offload": True}}
    assert tuning_problems(None, model, large, sft=sft | offloaded) == []

    (problem,) = tuning_problems(None, model, small, sft=sft)
    assert "; use adapter: {lora: {}}, which needs " in problem.allowed
    (problem,) = tuning_problems(None, model, small, sft=sft | offloaded)
    assert "offloaded to the host 28.7 GB (15.2 GB); use adapter: {lora: {}}, which needs " in problem.allowed


@pytest.mark.parametrize(
    ("times", "named"),
    [
        (4, "use adapter: {lora: {}}"),
        (24, "use adapter: {lora: {}, quantize: nf4}"),
        (96, "tune a smaller model: no accelerator has as much memory"),
    ],
)
def test_where_sharding_is_not_enough_an_adapter_is_named_and_at_last_one_of_4_bits(times: int, named: str) -> None:
    model = HALF_A_BILLION.model_copy(update={"layers": times * HALF_A_BILLION.layers})
    sft: dict[str, Any] = {"data": "rows", "batch_size": 3, "layout": {"micro_batch": 1}}
    (problem,) = (each for each in tuning_problems("L4", model, sft=sft) if each.path == "post_training.0.sft")
    assert problem.allowed.partition("; ")[2].startswith(named)


def test_layers_are_computed_again_before_processes_are_added() -> None:
    layout = {"micro_batch": 1, "gradient_checkpointing": False}
    model = HALF_A_BILLION.model_copy(update={"layers": 2 * HALF_A_BILLION.layers})
    (problem,) = tuning_problems("L4", model, sft={"data": "rows", "layout": layout, "max_new_tokens": 1024})
    assert "; use layout: {gradient_checkpointing: true}, which needs " in problem.allowed


def test_vllm_s_share_is_taken_from_the_training() -> None:
    grpo = {"data": "rows", "rewards": ["math"], "batch_size": 32, "layout": {"micro_batch": 4}}
    assert tuning_problems("L4", grpo=grpo) == []
    (problem,) = tuning_problems("L4", grpo=grpo | {"gpu_memory_share": 0.6})
    assert "vLLM 14.4 GB" in problem.allowed


def test_vllm_s_share_holds_the_model() -> None:
    sft = {"data": "rows", "layout": {"micro_batch": 1}}
    (problem,) = tuning_problems("L4", sft=sft, evaluate=0.03)
    assert (problem.path, problem.value) == ("evaluate.gpu_memory_share", 0.03)
    assert problem.allowed.startswith("at least 0.05: 0.948 GB of weights in bf16 and a KV cache, on L4 (24 GB)")


@pytest.mark.parametrize("device", ["L4", None])
def test_the_kv_cache_of_what_is_sampled_has_room(device: str | None) -> None:
    """The cache must have room for a sequence of the engine's length. Without a device, it is in a CPU's memory."""
    model = HALF_A_BILLION.model_copy(update={"max_positions": 2**20, "kv_heads": HALF_A_BILLION.heads})
    sft = {"data": "rows", "layout": {"micro_batch": 1}}
    sums: dict[str, Any] = {"data": "rows", "rewards": ["match"]}

    def found(new: int, share: float = 0.6) -> list[Problem]:
        evaluators = {"sums": sums | {"max_new_tokens": new}}
        of_all = tuning_problems(device, model, sft=sft, evaluate=share, evaluators=evaluators)
        return [problem for problem in of_all if problem.path.startswith("evaluate")]

    assert found(4096) == []
    (problem,) = found(131_072, share=0.3)
    assert "GB for 131,072 tokens" in problem.allowed


# -- devices -----------------------------------------------------------------------------------------


def test_a_device_that_is_not_in_the_table_is_answered_with_those_that_are() -> None:
    (problem,) = problems(LAPTOP, SPEC.model_copy(update={"layout": Layout(device="H9000")}))
    assert problem.path == "pretrain.layout.device"
    assert "H100, " in problem.allowed


def test_more_processes_than_gpus() -> None:
    spec = SPEC.model_copy(update={"layout": Layout(processes=4, micro_batch=4)})
    (problem,) = problems(TWO_H100, spec)
    assert (problem.path, problem.value) == ("pretrain.layout.processes", 4)
    assert problems(LAPTOP, spec) == []  # processes share a CPU


def test_a_run_that_is_meant_for_elsewhere_is_not_held_to_the_gpus_here() -> None:
    layout = Layout(processes=4, micro_batch=4, device="A100")
    assert problems(TWO_H100, SPEC.model_copy(update={"layout": layout})) == []


@pytest.mark.parametrize(
    ("machine", "device", "why"),
    [
        (LAPTOP, None, "this machine has none"),
        (ONE_A100, None, "A100-80GB has no fp8 arithmetic"),
        (LAPTOP, "A100", "A100 has no fp8 arithmetic"),
        pytest.param(TWO_H100, None, "needs Transformer Engine", marks=WITHOUT_TRANSFORMER_ENGINE),
    ],
)
def test_fp8_that_cannot_be_had_is_refused(machine: Machine, device: str | None, why: str) -> None:
    spec = SPEC.model_copy(update={"precision": "fp8", "layout": Layout(device=device)})
    (problem,) = problems(machine, spec)
    assert problem.path == "pretrain.precision"
    assert why in problem.allowed and "bf16" in problem.allowed


def test_fp8_is_fine_on_the_device_that_has_it() -> None:
    assert problems(LAPTOP, SPEC.model_copy(update={"precision": "fp8", "layout": Layout(device="H100")})) == []


# -- suggested layouts -------------------------------------------------------------------------------


def test_what_hugging_face_cannot_say_is_named() -> None:
    model = ModelSpec(family="qwen3_moe", experts=ExpertsSpec(shared_ffn_hidden=64), vocab_size=4096)
    (problem,) = problems(LAPTOP, PretrainSpec(model=model), convert=ConvertSpec())
    assert (problem.path, problem.value) == ("pretrain.model.experts.shared_ffn_hidden", 64)
    assert "no shared expert" in problem.allowed


@pytest.mark.parametrize(
    "model",
    [
        ModelSpec(family="llama", vocab_size=4096),
        ModelSpec(family="qwen3_moe", experts=ExpertsSpec(), vocab_size=4096),
    ],
)
def test_every_family_can_be_converted(model: ModelSpec) -> None:
    assert problems(LAPTOP, PretrainSpec(model=model), convert=ConvertSpec()) == []


def _layout(words: str) -> Layout:
    """Return the layout in «use layout: {…}»."""
    (found,) = [part for part in words.split("; ") if part.startswith("use layout: ")]
    return Layout.model_validate(yaml.safe_load(found.removeprefix("use ").rpartition(", which")[0])["layout"])
