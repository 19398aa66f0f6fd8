"""How a model that was made elsewhere enters the chain: as it is, or to be pretrained on."""

import json
import os
from pathlib import Path
from typing import Any

from pydantic import Field

from tasks.convert.left_out import adapter_problem
from tasks.spec import Problem, StageSpec


class AdoptSpec(StageSpec):
    """An existing Hugging Face causal language model, by folder or by hub name."""

    model: str = Field(min_length=1, description="Folder with config.json and safetensors, or a hub name (owner/name)")
    revision: str | None = Field(None, description="With a hub name: the commit or tag")
    state: str | None = Field(
        None, description="What the folder looked like at the start; filled in by Baton, see `as_found`"
    )

    def folder(self) -> Path | None:
        """The folder on this machine, when `model` means one."""
        path = Path(self.model).expanduser().absolute()
        return path if path.is_dir() or self.model.startswith((".", "/", "~")) else None

    def missing(self) -> list[Problem]:
        """What the model's folder lacks on this machine, looked up cheaply."""
        folder = self.folder()
        if folder is None:
            if os.environ.get("HF_HUB_OFFLINE") == "1":
                return [Problem("model", self.model, "a folder: it is none, and HF_HUB_OFFLINE=1 forbids the hub")]
            return []
        if not folder.is_dir():
            return [Problem("model", self.model, f"an existing folder; {folder} is not there")]
        found = []
        if self.config() is None:
            found.append(Problem("model", self.model, "a folder with a whole config.json, as save_pretrained writes"))
        if not any(folder.glob("*.safetensors")):
            found.append(Problem("model", self.model, "a folder with *.safetensors (pickled weights are not read)"))
        if problem := adapter_problem(folder):
            found.append(Problem("model", self.model, f"a model without an adapter: {problem}"))
        if not (folder / "tokenizer_config.json").is_file():
            found.append(Problem("model", self.model, "a folder with its tokenizer (tokenizer_config.json)"))
        return found

    def max_positions(self) -> int | None:
        """The model's positions, when its config is on this machine."""
        found = (self.config() or {}).get("max_position_embeddings")
        return int(found) if found else None

    def config(self) -> dict[str, Any] | None:
        """config.json, or None when it is not there or not whole."""
        folder = self.folder()
        try:
            content = json.loads((folder / "config.json").read_text()) if folder else None
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def as_found(self) -> "AdoptSpec":
        """This spec with the folder's present state, so that changed weights are not a cache hit."""
        folder = self.folder()
        if folder is None:
            return self
        files = sorted(path for path in folder.iterdir() if path.is_file())
        state = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
        return self.model_copy(update={"state": "; ".join(state)})
