"""The model that is evaluated, as far as it is known without loading it."""

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
class Subject:
    """A Hugging Face directory with a fast tokenizer."""

    path: Path
    label: str
    positions: int  # tokens, prompt and completion together
    end_of_text: int  # token id; a document stands after one, and ends in one
    tokenizer: Tokenizer

    def tokens(self, text: str) -> list[int]:
        """The text's own tokens: nothing is added, and "<|endoftext|>" in it is text like any other."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def tokens_of(
        self, prompt: str | list[dict[str, Any]], tools: Any = None, options: dict[str, Any] | None = None
    ) -> list[int]:
        """A prompt's tokens: what the tokenizer puts before every text (BOS, where it does), then the text; messages
        through the chat template. `options`: the template's own, a row's column `chat_template_kwargs`."""
        if isinstance(prompt, str):
            return [*self.tokenizer.encode("").ids, *self.tokens(prompt)]
        if isinstance(tools, str):  # a column of Parquet, whose objects would have to be all alike
            tools = json.loads(tools)
        given = {"tools": tools or None, **(options or {})}
        return list(self.chat.apply_chat_template(prompt, **given, add_generation_prompt=True, return_dict=False))

    @cached_property
    def chat(self) -> "PreTrainedTokenizerFast":
        """The tokenizer with its chat template. A model without one is asked in the template that post-training would
        give it, so that base and tuned models are compared on the same prompts."""
        from transformers import AutoTokenizer

        tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(self.path)
        if not tokenizer.chat_template:
            say(f"{self.label} has no chat template: it is asked in ChatML")
            chat_of(tokenizer)
        return tokenizer


def open_subject(path: Path) -> Subject:
    facts = read_manifest(path).facts
    end = json.loads((path / "config.json").read_text())["eos_token_id"]
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return Subject(
        path=path,
        label=str(facts["label"]),
        positions=int(facts["max_positions"]),
        end_of_text=end[0] if isinstance(end, list) else end,
        tokenizer=tokenizer,
    )
