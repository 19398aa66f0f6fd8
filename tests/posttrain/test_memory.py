"""The memory estimate of a post-training process, compared with TRL's trainers on a tiny model, and with values
computed by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from trl import DPOConfig, SFTConfig, SFTTrainer

from baton.tasks.hardware.memory import CPU, GPU, Kernels
from baton.tasks.models.model_spec import ModelSpec
from baton.tasks.posttrain.adapter import peft_config
from baton.tasks.posttrain.adapter_spec import AdapterSpec
from baton.tasks.posttrain.layout import TuningLayout
from baton.tasks.posttrain.memory import TuningMemory, estimate
from baton.tasks.posttrain.methods.dpo.spec import DPOSpec
from baton.tasks.posttrain.methods.grpo.spec import GRPOSpec
from baton.tasks.posttrain.methods.sft import SFTSpec
from baton.tasks.posttrain.quantize import load_in_4_bits
from baton.tasks.posttrain.spec import PostTrainSpec
from baton.tasks.posttrain.trl_hooks.dpo import PairTrainer
from baton.tasks.posttrain.trl_hooks.trainer import train_in_fp32
from baton.tasks.rewards.spec import RewardSpec
from tests.pretrain.footprint import peak, size

VOCABULARY = 512
MODEL = ModelSpec(layers=4, hidden=128, heads=4, kv_heads=2, head_dim=32, ffn_hidden=384, max_positions=256)
QLORA = AdapterSpec(quantize="nf4")
LIMITS: dict[str, Any] = {"max_prompt_tokens": 32, "max_new_tokens": 32, "data": "rows"}
REWARDED: dict[str, Any] = {**LIMITS, "rewards": [RewardSpec.model_validate("math")]}


def estimated(spec: PostTrainSpec, kernels: Any = GPU, **more: Any) -> TuningMemory:
    return estimate(spec, MODEL, VOCABULARY, MODEL.max_positions, kernels, **more)


@pytest.fixture(scope="module")
def model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MODEL with random weights, and the tiny model's tokenizer."""
    folder = tmp_path_factory.mktemp("estimated")
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=MODEL.hidden,
        intermediate_size=MODEL.ffn_hidden,
        num_hidden_layers=MODEL.layers,
        num_attention_heads=MODEL.heads,
        num_key_value_heads=MODEL.kv_heads,
        head_dim=MODEL.head_dim,
        max_position_embeddings=MODEL.max_positions,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


def measured(model: Path, spec: PostTrainSpec, folder: Path, checkpointing: bool) -> TuningMemory:
    """Measure two steps of TRL's trainer on rows of the maximum length, of which one is shorter, so that there is
    padding."""
    if spec.adapter and spec.adapter.quantize:
        policy = load_in_4_bits(model, torch.bfloat16, torch.bfloat16)
    else:
        policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16 if spec.adapter else torch.float32)
    adapter = {"peft_config": peft_config(spec.adapter, policy)} if spec.adapter else {}
    common: dict[str, Any] = {
        "output_dir": str(folder), "max_steps": 2, "per_device_train_batch_size": spec.micro_batch(),
        "gradient_accumulation_steps": spec.batch_size // spec.micro_batch(), "bf16": True, "use_cpu": True,
        "gradient_checkpointing": checkpointing, "dataloader_pin_memory": False, "save_strategy": "no",
        "report_to": "none", "disable_tqdm": True, "max_length": None,
    }  # fmt: skip
    tokenizer, count = AutoTokenizer.from_pretrained(model), 2 * spec.batch_size
    trainer: Any
    ids: Any
    arguments: Any
    if isinstance(spec, SFTSpec):
        ids = [torch.randint(2, VOCABULARY, (64 - row % 2,)).tolist() for row in range(count)]
        rows = Dataset.from_dict({"input_ids": ids, "labels": ids})
        arguments = SFTConfig(**common, dataset_kwargs={"skip_prepare_dataset": True})
        trainer = SFTTrainer(model=policy, args=arguments, train_dataset=rows, processing_class=tokenizer, **adapter)
    else:
        parts = ("prompt_ids", "chosen_ids", "rejected_ids")
        ids = {name: [torch.randint(2, VOCABULARY, (32 - row % 2,)).tolist() for row in range(count)] for name in parts}
        arguments = DPOConfig(**common, remove_unused_columns=False)
        trainer = PairTrainer(
            model=policy,
            args=arguments,
            train_dataset=Dataset.from_dict(ids),
            processing_class=tokenizer,
            **adapter,
        )
    train_in_fp32(trainer.model)
    with peak() as largest:
        trainer.train()
    gradients = size(weight for weight in trainer.model.parameters() if weight.requires_grad)
    moments = size(each for state in trainer.optimizer.state.values() for each in state.values() if each.dim())
    reference = size(trainer.ref_model.parameters()) if getattr(trainer, "ref_model", None) else 0
    activations = largest() - gradients - moments
    return TuningMemory(size(_held(trainer.model)), gradients, moments, activations, reference)


def _held(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield the weights, and the statistics of 4-bit weights."""
    for weight in model.parameters():
        yield weight
        if state := getattr(weight, "quant_state", None):
            yield from (state.absmax, state.state2.absmax)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Use one thread, since tensors this small are slower on two, and TRL's head as the engines patch it without a
    GPU."""
    monkeypatch.setattr("trl.trainer.utils._use_triton", lambda device: True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.long
@pytest.mark.parametrize(
    ("spec", "checkpointing"),
    [
        (SFTSpec(**LIMITS, batch_size=16, layout=TuningLayout(micro_batch=8)), False),
        (SFTSpec(**LIMITS, batch_size=16, layout=TuningLayout(micro_batch=8)), True),
        (DPOSpec(**LIMITS, batch_size=8, layout=TuningLayout(micro_batch=4)), False),
        (SFTSpec(**LIMITS, batch_size=16, layout=TuningLayout(micro_batch=8), adapter=AdapterSpec()), False),
        (SFTSpec(**LIMITS, batch_size=16, layout=TuningLayout(micro_batch=8), adapter=AdapterSpec()), True),
        (DPOSpec(**LIMITS, batch_size=8, layout=TuningLayout(micro_batch=4), adapter=AdapterSpec()), False),
        (SFTSpec(**LIMITS, batch_size=16, layout=TuningLayout(micro_batch=8), adapter=QLORA), False),
        (SFTSpec(**LIMITS, batch_size=16, layout=TuningLayout(micro_batch=8), adapter=QLORA), True),
        (DPOSpec(**LIMITS, batch_size=8, layout=TuningLayout(micro_batch=4), adapter=QLORA), False),
    ],
    ids=[
        f"{kind}{each}"
        for each in ("", " with LoRA", " with QLoRA")
        for kind in ("SFT", "SFT, each layer computed again,", "DPO")
    ],
)
def test_trl_holds_what_is_estimated(model: Path, tmp_path: Path, spec: PostTrainSpec, checkpointing: bool) -> None:
    """With recomputed layers, the estimate is for a GPU, whose kernels need no fp32 logits; on the CPU, there are
    few here."""
    found = measured(model, spec, tmp_path, checkpointing)
    expected = estimated(spec, GPU if checkpointing else CPU)
    for part in ("weights", "gradients", "optimizer", "reference"):
        assert getattr(expected, part) == pytest.approx(getattr(found, part), rel=0.01), part
    assert 0.85 < expected.total / found.total < 1.15, (expected, found)


def test_a_weight_takes_16_to_18_bytes_and_4_more_with_a_reference() -> None:
    """These are fp32 weights, gradients and two moments; a bf16 copy exists beside them when gradients are
    accumulated."""
    large = ModelSpec(layers=36, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn_hidden=12288, max_positions=4096)

    def bytes_each(spec: PostTrainSpec) -> float:
        found = estimate(spec, large, 151_936, 4096)
        return found.total / large.parameters(151_936)

    once: dict[str, Any] = {**LIMITS, "batch_size": 1, "layout": {"micro_batch": 1}}
    twice = once | {"batch_size": 2}
    assert 16 < bytes_each(SFTSpec(**once)) < bytes_each(SFTSpec(**twice)) < 18.1
    assert 20 < bytes_each(DPOSpec(**once)) < bytes_each(DPOSpec(**twice)) < 22.1


def test_with_an_adapter_a_weight_takes_two_bytes_and_the_reference_none() -> None:
    large = ModelSpec(layers=36, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn_hidden=12288, max_positions=4096)
    for kind in (SFTSpec, DPOSpec):
        spec = kind(**LIMITS, batch_size=1, layout=TuningLayout(micro_batch=1), adapter=AdapterSpec())
        found = estimate(spec, large, 151_936, 4096)
        assert found.reference == 0
        assert 2 < found.total / large.parameters(151_936) < 2.6


def test_fsdp2_divides_what_each_process_holds_and_ddp_adds_buckets() -> None:
    large = ModelSpec(layers=36, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn_hidden=12288, max_positions=4096)

    def memory(sharding: Any, processes: int) -> TuningMemory:
        layout = TuningLayout(sharding=sharding, processes=processes, micro_batch=1)
        spec = DPOSpec(**LIMITS, batch_size=8, layout=layout)
        return estimate(spec, large, 151_936, 4096)

    alone, copied, sharded = memory("none", 1), memory("ddp", 4), memory("fsdp2", 4)
    for part in ("weights", "gradients", "optimizer", "reference"):
        assert getattr(sharded, part) == pytest.approx(getattr(alone, part) / 4, rel=1e-6)
    assert copied.gradients == 2 * alone.gradients and copied.optimizer == alone.optimizer
    assert 0 < sharded.activations < alone.activations  # only one layer is gathered at a time


def test_cpu_offload_leaves_a_gpu_its_activations_and_vllm() -> None:
    """Everything that FSDP2 divides is in host memory, which is also the memory of a CPU process."""

    def memory(cpu_offload: bool, kernels: Kernels = GPU) -> TuningMemory:
        layout = TuningLayout(sharding="fsdp2", processes=4, micro_batch=1, cpu_offload=cpu_offload)
        return estimated(GRPOSpec(**REWARDED, batch_size=8, layout=layout), kernels, capacity=80e9)

    held, offloaded = memory(False), memory(True)
    assert offloaded.host == held.weights + held.gradients + held.optimizer + held.reference
    assert offloaded.total == held.activations + held.vllm
    assert memory(True, CPU) == memory(False, CPU)


def test_grpo_has_vllm_s_share_beside_it_and_a_reference_for_its_kl() -> None:
    with_kl, without = (estimated(GRPOSpec(**REWARDED, beta=beta), capacity=80e9) for beta in (0.1, 0.0))
    assert with_kl.vllm == without.vllm == 24e9
    assert with_kl.reference == with_kl.weights and without.reference == 0
    assert "vLLM 24 GB" in without.breakdown()


def test_smaller_micro_batches_and_shorter_rows_take_less() -> None:
    def total(**changes: Any) -> int:
        return estimated(
            SFTSpec(**LIMITS | {"batch_size": 32, "layout": TuningLayout(micro_batch=32)} | changes), CPU
        ).total

    assert total(layout=TuningLayout(micro_batch=8)) < total(max_new_tokens=8) < total() < total(max_new_tokens=64)
