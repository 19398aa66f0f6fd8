"""The estimated hours of each kind of work, for models of 8 B parameters."""

from typing import Any

import pytest

from baton.tasks.core.spec import StageSpec
from baton.tasks.evaluate.spec import EvaluateSpec
from baton.tasks.hardware.accelerators import BY_NAME
from baton.tasks.hardware.machine import Machine
from baton.tasks.hardware.memory import CPU
from baton.tasks.hardware.need import Need
from baton.tasks.posttrain.memory import TuningMemory
from baton.tasks.posttrain.methods.dpo.spec import DPOSpec
from baton.tasks.posttrain.methods.grpo.spec import GRPOSpec
from baton.tasks.posttrain.methods.sft import SFTSpec
from baton.tasks.posttrain.spec import PostTrainSpec
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.spec import PretrainSpec
from baton.workflows.checks.run_context import RunContext, need
from tests.pretrain.shapes import LLAMA_3_8B, QWEN3_30B_A3B

H100 = BY_NAME["H100"]
LIMITS: dict[str, Any] = {"steps": 10, "max_prompt_tokens": 512, "max_new_tokens": 512}


def needed(spec: StageSpec, model: Any = LLAMA_3_8B) -> Need:
    pretrain = PretrainSpec(model=model.model_copy(update={"vocab_size": 128_256, "max_positions": 8192}))
    found = need(RunContext({"pretrain": pretrain}, Machine((), 2**40)), spec)
    assert found
    return found


def parts(spec: StageSpec, mfu: float | None = None, **changes: Any) -> dict[str, float]:
    return needed(spec.model_copy(update=changes)).parts(H100, mfu)


def pretraining(model: Any = LLAMA_3_8B, **layout: Any) -> PretrainSpec:
    model = model.model_copy(update={"vocab_size": 128_256, "max_positions": 8192})
    return PretrainSpec(model=model, sequence_length=4096, global_batch=16, steps=10, layout=Layout(**layout))


def test_recomputed_layers_take_another_forward_pass_and_recomputed_attention_its_share() -> None:
    none, selective, full = (parts(pretraining(recompute=how)) for how in ("none", "selective", "full"))
    assert "recomputation" not in none
    assert full["recomputation"] / full["training"] == pytest.approx(0.31, abs=0.01)  # a third without the logits
    assert 0.01 < selective["recomputation"] / selective["training"] < 0.05


def test_tuning_recomputes_on_a_gpu_unless_it_is_told_not_to() -> None:
    spec = SFTSpec(**LIMITS)
    assert parts(spec)["recomputation"] / parts(spec)["training"] == pytest.approx(0.31, abs=0.02)
    assert "recomputation" not in parts(spec, layout=spec.layout.model_copy(update={"gradient_checkpointing": False}))
    on_a_cpu = need(RunContext({"pretrain": pretraining()}, Machine((), 2**40)), spec, CPU)
    assert on_a_cpu and "recomputation" not in {work.name for work in on_a_cpu.work}


def test_weights_in_4_bits_are_unpacked() -> None:
    quantized = SFTSpec.model_validate({**LIMITS, "adapter": {"quantize": "nf4"}})
    found = parts(quantized)
    assert found["unpacking 4 bits"] / found["training"] == pytest.approx(0.39)
    assert "unpacking 4 bits" not in parts(SFTSpec.model_validate({**LIMITS, "adapter": {}}))


def test_a_mixture_of_experts_reaches_half_of_a_dense_models_share_of_the_peak() -> None:
    dense, mixture = needed(pretraining()), needed(pretraining(QWEN3_30B_A3B), QWEN3_30B_A3B)
    assert (dense.mfu(None), mixture.mfu(None), mixture.mfu(0.3)) == (0.4, 0.2, 0.3)
    assert mixture.parts(H100, None)["training"] == pytest.approx(2 * mixture.parts(H100, 0.4)["training"])


def test_grpo_without_a_kl_term_has_no_reference_model() -> None:
    without, with_one = (GRPOSpec.model_validate({**LIMITS, "beta": beta}) for beta in (0.0, 0.1))
    before = "log-probabilities before the step"
    assert parts(with_one)[before] == pytest.approx(2 * parts(without)[before])  # one of them for importance sampling
    assert parts(without)[before] == pytest.approx(parts(without)["training"] / 3)
    for spec, held in ((without, False), (with_one, True)):
        memory = needed(spec).memory
        assert isinstance(memory, TuningMemory) and (memory.reference > 0) is held


def test_grpo_sends_its_weights_after_every_step() -> None:
    spec = GRPOSpec.model_validate(LIMITS)
    here = parts(spec)["weight sync"]
    assert here == pytest.approx(10 * 2 * 8.03e9 / 25e9 / 3600, rel=0.01)
    elsewhere = GRPOSpec.model_validate({**LIMITS, "rollout_servers": {"nodes": 1}})
    assert parts(elsewhere)["weight sync"] == pytest.approx(2 * here)


@pytest.mark.parametrize("spec", [SFTSpec(**LIMITS), DPOSpec(**LIMITS), GRPOSpec(**LIMITS)])
def test_every_stage_starts_and_a_placed_one_waits_for_its_machine(spec: PostTrainSpec) -> None:
    placed = type(spec).model_validate({**LIMITS, "placement": {"accelerators": ["H100:1"]}})
    assert 60 < 3600 * parts(spec)["start"] < 180
    assert 3600 * (parts(placed)["start"] - parts(spec)["start"]) == pytest.approx(180)


def test_an_evaluation_takes_its_completions_and_says_what_is_not_counted() -> None:
    asked = {"gsm8k": {"data": "gsm8k", "prompts": 1000, "samples": 2, "max_new_tokens": 512}}
    one = needed(EvaluateSpec.model_validate(asked))
    twice = needed(EvaluateSpec.model_validate({"gsm8k": asked["gsm8k"] | {"prompts": 2000}}))
    assert one.sampled == 2000 * 512 and one.not_counted == ""
    assert twice.parts(H100, None)["completions"] > 1.9 * one.parts(H100, None)["completions"] > 0
    harness = needed(EvaluateSpec.model_validate({"bits_per_byte": {}, "tasks": {"lm_eval": ["gsm8k"]}}))
    assert harness.not_counted == "lm-eval's tasks (tasks)"


def test_a_layout_that_cannot_run_has_no_estimate() -> None:
    wrong = pretraining(context=37)
    assert need(RunContext({"pretrain": wrong}, Machine((), 2**40)), wrong) is None
