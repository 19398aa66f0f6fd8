"""The spec of an existing Hugging Face model, to use as it is or to continue pretraining."""

import json
from pathlib import Path
from typing import Any

from pydantic import Field

from infra.placement.address import File, bring, digest_of, files_in, find, selected, state_of
from infra.placement.storage import StorageError, is_bucket, read
from tasks.convert.unconverted_files import adapter_among
from tasks.spec import NotSeen, PathText, Problem, StageSpec

MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken")


class LoadHFSpec(StageSpec):
    """An existing Hugging Face causal language model, given by folder, address or hub name."""

    model: PathText = Field(
        min_length=1,
        description="Folder with config.json and safetensors, its address (s3://…, gs://…, az://…, hf://…), or a hub "
        "name (owner/name)",
    )
    revision: str | None = Field(None, description="With a hub name: the commit or tag")
    state: str | None = Field(
        None, description="State of the folder at the start of the run; filled in by Baton, see `as_found`"
    )

    def folder(self) -> Path | None:
        """The local folder, if `model` is one or an archive of one. Raises StorageError."""
        if is_bucket(self.model):
            return bring(self.model) if digest_of(self.model) else None
        path = Path(self.model).expanduser().absolute()
        return path if path.is_dir() or self.model.startswith((".", "/", "~")) else None

    def fetch(self) -> Path | None:
        """The local folder, downloaded first if `model` is an address. None: a hub name. Raises StorageError."""
        return bring(self.model, MODEL_FILES) if is_bucket(self.model) else self.folder()

    def local_files(self) -> list[File]:
        """The files of this machine that the spec refers to."""
        folder = None if is_bucket(self.model) else self.folder()
        return selected(files_in(folder), MODEL_FILES) if folder else []

    def missing(self) -> list[Problem]:
        """What the model's folder lacks, from names and config.json only."""
        if digest_of(self.model):
            return []  # checked when it was packed
        if is_bucket(self.model):
            try:
                return self._lacking({file.name for file in selected(find(self.model), ["*"])}, self.model)
            except StorageError as error:
                return [NotSeen("model", self.model, f"the address of a model's folder: {error.message}")]
        folder = self.folder()
        if folder is None:
            return []  # a hub name
        if not folder.is_dir():
            return [Problem("model", self.model, f"an existing folder; {folder} does not exist")]
        return self._lacking({path.name for path in folder.iterdir()}, str(folder))

    def _lacking(self, names: set[str], folder: str) -> list[Problem]:
        if not names:
            return [Problem("model", self.model, "the address of a model's folder; there are no files")]
        found = []
        if self.config() is None:
            found.append(Problem("model", self.model, "a folder with a valid config.json, as save_pretrained writes"))
        if not any(name.endswith(".safetensors") for name in names):
            found.append(Problem("model", self.model, "a folder with *.safetensors (pickled weights are not read)"))
        if problem := adapter_among(names, folder):
            found.append(Problem("model", self.model, f"a model without an adapter: {problem}"))
        if "tokenizer_config.json" not in names:
            found.append(Problem("model", self.model, "a folder with its tokenizer (tokenizer_config.json)"))
        return found

    def max_positions(self) -> int | None:
        """max_position_embeddings, if the config is on this machine or at an address."""
        found = (self.config() or {}).get("max_position_embeddings")
        return int(found) if found else None

    def config(self) -> dict[str, Any] | None:
        """config.json, or None if it is missing or not valid JSON."""
        try:
            content = json.loads(self._config())
        except (OSError, ValueError, RecursionError, StorageError):  # RecursionError: deep nesting
            return None
        return content if isinstance(content, dict) else None

    def _config(self) -> bytes:
        if is_bucket(self.model) and not digest_of(self.model):
            return read(f"{self.model.rstrip('/')}/config.json")
        folder = self.folder()
        return (folder / "config.json").read_bytes() if folder else b""

    def as_found(self) -> "LoadHFSpec":
        """This spec with the folder's current state, so that changed weights are not a cache hit. Raises
        StorageError."""
        if digest_of(self.model):
            return self
        if is_bucket(self.model):
            files = selected(find(self.model), MODEL_FILES)
        elif folder := self.folder():
            files = files_in(folder)
        else:
            return self
        return self.model_copy(update={"state": state_of(files)})
