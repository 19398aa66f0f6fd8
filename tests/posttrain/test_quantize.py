"""QLoRA: a 4-bit base with an adapter that is merged into the original weights."""

from pathlib import Path

import torch
from peft import get_peft_model
from transformers import AutoModelForCausalLM

from baton.tasks.core.job import open_job
from baton.tasks.core.manifest import read_manifest
from baton.tasks.posttrain.adapter import merged_weights, peft_config
from baton.tasks.posttrain.adapter_spec import AdapterSpec
from baton.tasks.posttrain.methods.sft import train
from baton.tasks.posttrain.quantize import in_4_bits, load_in_4_bits
from tests.posttrain.tiny import repeated_words, start, tiny_rows, wait_for_step, without_times, write_job


def test_every_linear_layer_but_the_head_takes_4_bits(model: Path) -> None:
    found = load_in_4_bits(model, torch.bfloat16, torch.bfloat16)
    stored = {name for name, weight in found.named_parameters() if in_4_bits(weight)}
    assert stored == {name for name, _ in found.named_parameters() if "proj" in name}
    assert found.lm_head.weight.dtype == torch.bfloat16


def test_the_weights_that_reach_vllm_are_the_originals_with_the_adapter(model: Path) -> None:
    """The 4-bit weights differ from the originals by several percent."""
    base = load_in_4_bits(model, torch.float32, torch.float32)
    both = get_peft_model(base, peft_config(AdapterSpec(quantize="nf4"), base))
    for name, weight in both.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)

    originals = dict(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).named_parameters())
    updates = {
        name: module.get_delta_weight("default")
        for name, module in both.named_modules()
        if "_proj" in name and hasattr(module, "lora_A")
    }
    found = dict(merged_weights(both))

    assert found.keys() == originals.keys()
    for name, weight in originals.items():
        update = updates.get(f"base_model.model.{name.removesuffix('.weight')}")
        torch.testing.assert_close(found[name], weight if update is None else weight + update)


def test_an_evaluation_does_not_change_the_weights_in_4_bits(model: Path) -> None:
    base, tokens = load_in_4_bits(model, torch.float32, torch.float32), torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        first, evaluated, last = (base.train(mode)(input_ids=tokens).logits for mode in (True, False, True))
    assert torch.equal(first, evaluated) and torch.equal(first, last)


def test_killed_and_restarted_it_makes_the_same_model(model: Path, tmp_path: Path) -> None:
    rows = tiny_rows(tmp_path / "rows", repeated_words(), "prompt_completion")
    adapter = {"lora": {"rank": 4}, "quantize": "nf4"}
    spec = {"data": "twice", "steps": 8, "batch_size": 8, "checkpoint_every": 2, "adapter": adapter}
    whole, killed = (write_job(tmp_path / name, "sft", spec, model=model, rows=rows) for name in ("whole", "killed"))
    engine = start("baton.tasks.posttrain.engine", killed)
    wait_for_step(killed, engine, 3)
    engine.kill()
    engine.wait()

    for job in (whole, killed):
        train(open_job(job))

    assert read_manifest(killed / "output").digest == read_manifest(whole / "output").digest
    assert without_times(killed) == without_times(whole)
