"""The model that is evaluated, as far as it is known without loading it."""

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from tasks.manifest import read_manifest


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
