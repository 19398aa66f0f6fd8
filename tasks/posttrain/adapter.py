"""Train a LoRA adapter with PEFT, and merge it.

The frozen weights stay in bf16 if they are stored in bf16; the adapter is in fp32. Merging is done in fp32, since a
merged bf16 weight would lose small updates, and undoing a merge in place would change the base model.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from peft.tuners.lora import LoraLayer
from torch.distributed.tensor import DTensor

from baton.tasks.core.job import StageError
from baton.tasks.models.model_files import linear_names
from baton.tasks.posttrain.adapter_spec import AdapterSpec
from baton.tasks.posttrain.quantize import in_4_bits, original_weights

TOLERANCE = 1e-3  # difference of merged logits, relative to the largest logit; in fp32 it is about 1e-6


def peft_config(adapter: AdapterSpec, model: Any) -> LoraConfig:
    """Return PEFT's configuration. Raises StageError if the model lacks one of the layers."""
    lora = adapter.lora
    if lora.targets != "all-linear":
        layers = linear_names(model)
        if unknown := sorted({*lora.targets} - layers):
            raise StageError(
                f"adapter.lora.targets: {', '.join(unknown)}: the model has {', '.join(sorted(layers))}; or all-linear"
            )
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type] # PEFT only divides it
        lora_dropout=lora.dropout,
        target_modules=lora.targets,
    )


def base_of(model: Any) -> Any:
    """Return the Transformers model without PEFT's wrapper; an adapter's layers are part of it."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def merged(model: Any) -> Any:
    """Return the Transformers model in fp32 with the adapter merged into its weights, or a model without an adapter
    unchanged. Raises StageError if the merged model computes other logits."""
    if not isinstance(model, PeftModel):
        return model
    model.eval().float()
    before = _logits(base_of(model))
    merged_model = model.merge_and_unload()
    after = _logits(merged_model)
    difference = float((after - before).abs().max() / before.abs().max())
    if not difference <= TOLERANCE:
        raise StageError(
            f"the merged model's logits differ from those of model and adapter by {difference:.2g} of the largest, "
            f"more than {TOLERANCE:g}: PEFT cannot merge this model exactly; train without `adapter`"
        )
    print(f"the adapter is merged; logits differ by {difference:.2g} of the largest", flush=True)
    return merged_model


@torch.no_grad()
def _logits(model: Any) -> torch.Tensor:
    """Logits of 4 random rows of 16 tokens, without autocast."""
    drawn = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.get_text_config().vocab_size, (4, 16), generator=drawn).to(model.device)
    with torch.autocast(model.device.type, enabled=False):
        logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits.float()


def merged_weights(model: PeftModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the base model's weights by its own names, with the adapter merged, in fp32, one tensor at a time, without
    changing the model. For weights in 4 bits, the originals are read from the model's files. Collective if the weights
    are sharded."""
    original = original_weights(Path(model.name_or_path))
    adapted = {f"{name}.base_layer.weight": module for name, module in model.named_modules() if _has_adapter(module)}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if model.prefix in name:
                continue  # the adapter's A and B
            plain = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
            full = original(plain).to(weight.device) if in_4_bits(weight) else weight.data
            if layer := adapted.get(name):
                full = full.float() + layer.get_delta_weight("default").float()
            yield plain, full.full_tensor() if isinstance(full, DTensor) else full


def _has_adapter(module: torch.nn.Module) -> bool:
    return isinstance(module, LoraLayer) and "default" in module.lora_A
