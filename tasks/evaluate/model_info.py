"""What is known of a model without loading its weights: length limit, tokenizer, chat template."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from infra.progress import say
from tasks.manifest import read_manifest
from tasks.posttrain.chat import chat_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class ModelInfo:
    """A Hugging Face directory with a fast tokenizer."""

    path: Path
    label: str
    positions: int  # limit of prompt plus completion, in tokens
    end_of_text: int  # token id, before and after every document
    tokenizer: Tokenizer
    base: Path | None = None  # of an adapter

    def tokens(self, text: str) -> list[int]:
        """Tokenize a text without special tokens; "<|endoftext|>" in it is ordinary text."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def tokens_of(
        self, prompt: str | list[dict[str, Any]], tools: Any = None, options: dict[str, Any] | None = None
    ) -> list[int]:
        """Tokenize a prompt: a text after the tokenizer's prefix (BOS, if it adds one), messages through the chat
        template. `options` are the template's, from a row's column `chat_template_kwargs`."""
        if isinstance(prompt, str):
            return [*self.tokenizer.encode("").ids, *self.tokens(prompt)]
        if isinstance(tools, str):  # Parquet columns hold objects of one schema only, so tools may be JSON
            tools = json.loads(tools)
        kwargs = {"tools": tools or None, **(options or {})}
        return list(self.chat.apply_chat_template(prompt, **kwargs, add_generation_prompt=True, return_dict=False))

    @cached_property
    def chat(self) -> "PreTrainedTokenizerFast":
        """The tokenizer with its chat template. A model without one gets the template that post-training would set, so
        that base and tuned models are compared on the same prompts."""
        from transformers import AutoTokenizer

        tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(self.path)
        if not tokenizer.chat_template:
            say(f"{self.label} has no chat template: using ChatML")
            chat_of(tokenizer)
        return tokenizer


def read_model_info(path: Path, base: Path | None = None) -> ModelInfo:
    """`base`: the weights of an adapter. Raises ArtifactError if the directory is not a complete artifact."""
    facts = read_manifest(path).facts
    end = json.loads((path / "config.json").read_text())["eos_token_id"]
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return ModelInfo(
        path=path,
        label=str(facts["label"]),
        positions=int(facts["max_positions"]),
        end_of_text=end[0] if isinstance(end, list) else end,
        tokenizer=tokenizer,
        base=base,
    )
