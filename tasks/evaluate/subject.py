"""The model that is evaluated, as far as it is known without loading it."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from tasks.job import StageError
from tasks.manifest import read_manifest

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

    def tokens_of(self, path: str, prompt: str | list[dict[str, Any]], tools: Any = None) -> list[int]:
        """A prompt's tokens: what the tokenizer puts before every text (BOS, where it does), then the text; messages
        through the chat template. Raises StageError, which names the field at `path`, when there is no template."""
        if isinstance(prompt, str):
            return [*self.tokenizer.encode("").ids, *self.tokens(prompt)]
        if not self.chat.chat_template:
            raise StageError(
                f"{path}.data: the rows have messages, and the tokenizer of the model {self.label} has no chat "
                "template: evaluate a model that was tuned on messages, or give rows whose prompts are text"
            )
        if isinstance(tools, str):  # a column of Parquet, whose objects would have to be all alike
            tools = json.loads(tools)
        return list(
            self.chat.apply_chat_template(prompt, tools=tools or None, add_generation_prompt=True, return_dict=False)
        )

    @cached_property
    def chat(self) -> "PreTrainedTokenizerFast":
        """The tokenizer with its chat template."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.path)


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
