"""Run a Hugging Face model with transformers, one layer at a time.

This is an audit's reference. It holds one layer, or the embedding and output projection, in memory, but never the full
model. transformers loads each layer as a one-layer model, so that its renaming of weights, fusing of experts, masks and
rotary embedding are included.
"""

import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PretrainedConfig, PreTrainedModel

from baton.tasks.convert.safetensors_files import StoredModel
from baton.tasks.models.errors import ConversionError


class Reference:
    """The model in `folder`. Hidden states are (batch, length, hidden) in fp32; sequences begin at position 0.

    Every method raises ConversionError for a weight that is missing, unexpected, or of another shape than the config's.
    """

    def __init__(self, folder: Path) -> None:
        self.config = AutoConfig.from_pretrained(folder)
        self.files = {name: folder / tensor.file for name, tensor in StoredModel(folder).tensors.items()}

    @torch.no_grad()
    def embed(self, tokens: Tensor) -> Tensor:
        """Return the first layer's hidden state for tokens (batch, length)."""
        embedding: Tensor = self._ends.get_input_embeddings()(tokens)
        return embedding

    @torch.no_grad()
    def layer(self, number: int, hidden: Tensor) -> Tensor:
        """Return the hidden state after layer `number`, counted from 0."""
        model = self._one_layer(number)
        outputs: list[Tensor] = []
        with model.model.layers[0].register_forward_hook(lambda module, inputs, output: outputs.append(output)):
            model.model(inputs_embeds=hidden, use_cache=False)
        return outputs[0]

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits, (batch, length, vocab), for the last layer's hidden state."""
        logits: Tensor = self._ends(inputs_embeds=hidden, use_cache=False).logits
        return logits

    @cached_property
    def _ends(self) -> PreTrainedModel:
        """Load the embedding, the last norm and the output projection."""
        names = {name: name for name in self.files if not name.startswith("model.layers.")}
        return _load(_with_layers(self.config, []), self._tensors(names), "the embedding, last norm and output")

    def _one_layer(self, number: int) -> PreTrainedModel:
        config = _with_layers(self.config, [number])
        prefix = f"model.layers.{number}."
        names = {name: name.replace(prefix, "model.layers.0.") for name in self.files if name.startswith(prefix)}
        # A vocabulary of one, so that embedding and output need no memory
        config.vocab_size, config.pad_token_id, config.tie_word_embeddings = 1, None, False
        row = torch.zeros(1, config.hidden_size)
        ends = {"model.embed_tokens.weight": row, "model.norm.weight": row[0].clone(), "lm_head.weight": row.clone()}
        return _load(config, ends | self._tensors(names), f"layer {number} (loaded as layer 0)")

    def _tensors(self, names: dict[str, str]) -> dict[str, Tensor]:
        """Return the tensors with these names under their new names."""
        tensors: dict[str, Tensor] = {}
        for path in {self.files[name] for name in names}:
            with safe_open(path, framework="pt") as file:
                tensors |= {new: file.get_tensor(name) for name, new in names.items() if self.files[name] == path}
        return tensors


def check_runs(fields: dict[str, Any]) -> None:
    """Raise ConversionError unless transformers can build and run the model of a config.json, with one layer of each
    kind, on the meta device."""
    try:
        config = AutoConfig.for_model(**fields)
        types = getattr(config, "layer_types", None) or [""] * config.num_hidden_layers
        dense = getattr(config, "first_k_dense_replace", 0)
        kinds = {(kind, number < dense): number for number, kind in enumerate(types)}
        with torch.device("meta"), torch.no_grad():
            model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._from_config(
                _with_layers(config, sorted(kinds.values())),
                attn_implementation="eager",
                experts_implementation="batched_mm",  # the only one without data-dependent control flow
            )
            tokens = torch.zeros(1, 2, dtype=torch.long)
            model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    except Exception as error:  # transformers does not validate configs: any exception can occur
        reason = " ".join(str(error).split())[:300]
        raise ConversionError(
            f"config.json: transformers cannot run this model ({type(error).__name__}: {reason})"
        ) from error


def _with_layers(config: PretrainedConfig, numbers: list[int]) -> PretrainedConfig:
    """Return the config of a model with only these layers, each of its original kind."""
    config = copy.deepcopy(config)
    config.num_hidden_layers = len(numbers)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[number] for number in numbers]
    if hasattr(config, "first_k_dense_replace"):
        config.first_k_dense_replace = sum(number < config.first_k_dense_replace for number in numbers)
    return config


def _load(config: PretrainedConfig, tensors: dict[str, Tensor], what: str) -> PreTrainedModel:
    """Load a model in fp32 with these weights, as from a file. `what` names the weights. Raises ConversionError."""
    problem = f"transformers cannot load {what} with the folder's config.json"
    try:
        model, loading = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].from_pretrained(
            None,
            config=config,
            state_dict=tensors,
            dtype=torch.float32,
            attn_implementation="eager",  # the only one that supports soft-capped scores
            experts_implementation="eager",
            ignore_mismatched_sizes=True,  # reported in `loading` instead
            output_loading_info=True,
        )
    except RuntimeError as error:  # experts' weights that cannot be fused; the log names them
        raise ConversionError(f"{problem}: {error}") from error
    wrong = {kind: sorted(map(str, names)) for kind, names in loading.items() if names}
    if wrong:
        raise ConversionError(f"{problem}: {wrong}")
    return model.eval()
