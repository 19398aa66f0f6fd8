"""Spec of an adapter: weights that are trained in place of the model's weights."""

from typing import Annotated, Literal

from pydantic import Field

from baton.tasks.core.spec import Problem, Spec, identity_if_set
from baton.tasks.models.model_spec import ModelSpec

MOST_SERVED = 512  # vLLM's largest rank


def linear_layers(model: ModelSpec) -> dict[str, tuple[int, int]]:
    """Return (inputs, outputs), in either order, of each linear layer of a decoder layer. Fused expert weights are not
    linear layers."""
    hidden, queries, keys = model.hidden, model.heads * model.head_dim, model.kv_heads * model.head_dim
    sizes = dict.fromkeys(("k_proj", "v_proj"), (hidden, keys)) | dict.fromkeys(("q_proj", "o_proj"), (hidden, queries))
    if not model.experts:
        sizes |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), (hidden, model.ffn_hidden))
    return sizes


class LoRASpec(Spec):
    """Low-rank adaptation (Hu et al. 2021): W + alpha / rank · B A, where W is frozen."""

    rank: int = Field(16, ge=1, le=1024, description="rank of A and B")
    alpha: float = Field(32, gt=0, le=4096, description="scale of the update, divided by the rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the adapter's input while training")
    targets: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = Field(
        "all-linear", description="adapted layers: every linear layer except the LM head, or names such as q_proj"
    )

    def parameters(self, model: ModelSpec) -> int:
        """Number of trained weights: rank × (inputs + outputs) of each adapted layer."""
        sizes = {name: sum(shape) for name, shape in linear_layers(model).items()}
        adapted = sizes if self.targets == "all-linear" else {name: sizes.get(name, 0) for name in self.targets}
        return self.rank * model.layers * sum(adapted.values())


class AdapterSpec(Spec):
    """An adapter, which is trained in place of the model's weights."""

    lora: LoRASpec = Field(LoRASpec(), description="Low-rank adaptation")
    quantize: Literal["nf4"] | None = identity_if_set(
        None,
        "hold the frozen model in 4 bits: QLoRA with NormalFloat and double quantization (Dettmers et al. "
        "2023); null: in bf16 if it is stored in bf16",
    )
    output: Literal["merged", "adapter"] = identity_if_set(
        "merged",
        "the stage's output: a model with the adapter `merged` into its weights, or the `adapter` alone, in PEFT's "
        "format, which evaluation, vLLM and the next stage use together with its base",
    )

    def problems(self) -> list[Problem]:
        if self.output == "adapter" and self.lora.rank > MOST_SERVED:
            allowed = f"at most {MOST_SERVED}, which vLLM serves, with output: adapter; or output: merged"
            return [Problem("lora.rank", self.lora.rank, allowed)]
        return []
