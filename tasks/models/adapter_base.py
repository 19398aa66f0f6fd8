"""A model as an engine opens it: a directory of weights, or an adapter together with its base.

An HFModel whose manifest has a `base` holds a model's config and tokenizer, and in `adapter/` a LoRA adapter in PEFT's
format instead of weights; its `base_model_name_or_path` is the base's digest. A PublishedModel has both, as
Transformers loads a model with an embedded adapter: the adapter beside the config, and the whole base in `base/`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton.infra.paths import located
from baton.infra.storage.buckets import is_bucket
from baton.tasks.core.job import Job
from baton.tasks.core.manifest import ArtifactError, read_manifest, verify
from baton.tasks.core.stored import fetch
from baton.tasks.models.hf_files import INDEX
from baton.tasks.models.tokenizer_files import has_chat_template

ADAPTER = "adapter"  # the folder
ADAPTER_CONFIG = "adapter_config.json"
BASE = "base"  # name of the input `model.base`, the base of the input `model`, and of the folder in a PublishedModel


def is_published_adapter(names: Iterable[str]) -> bool:
    """Return whether these are the names of the files of an adapter that is published with its base."""
    with_base = {ADAPTER_CONFIG, "adapter_model.safetensors", "config.json", INDEX, f"{BASE}/config.json"}
    return with_base <= {*names}


@dataclass(frozen=True)
class ModelFolders:
    """A model's directories."""

    directory: Path  # config and tokenizer
    weights: Path  # the weights of the full model, or of an adapter's base

    @property
    def adapter(self) -> Path | None:
        """The folder of its adapter, if it is one."""
        folders = (self.directory / ADAPTER, self.directory)
        return next((folder for folder in folders if (folder / ADAPTER_CONFIG).is_file()), None)

    @property
    def rank(self) -> int:
        """The rank of its adapter."""
        return int(self.adapter_config()["r"])

    @property
    def chats(self) -> bool:
        """Return whether its tokenizer has a chat template."""
        return has_chat_template(self.directory)

    def adapter_config(self) -> dict[str, Any]:
        """The adapter's settings, as PEFT writes them."""
        assert self.adapter
        config: dict[str, Any] = json.loads((self.adapter / ADAPTER_CONFIG).read_text())
        return config


def model_of(job: Job, name: str = "model") -> ModelFolders:
    """Return an input of a job with its base, and verify the files of both. Raises ArtifactError if the adapter belongs
    to another base."""
    directory, base = job.input(name), f"{name}.{BASE}"
    return _checked(directory, job.input(base) if base in job.inputs else None)


def open_model(directory: Path, base: Path | None = None) -> ModelFolders:
    """Open the model in the directory of an HFModel or a PublishedModel, and verify every file. An adapter's base is in
    `base`, or where it was when the adapter was trained. Raises ArtifactError."""
    manifest = verify(directory)
    recorded = manifest.fields.get("base")
    if recorded and base is None:
        place = located(recorded["place"])
        base = fetch(place, recorded["digest"]) if is_bucket(place) else Path(place)
        if not base.is_dir():
            raise ArtifactError(
                f"{directory} is an adapter, and its base {recorded['digest'][:12]} is no longer in {base}: give its "
                "new location with --base"
            )
    if base is not None:
        verify(base)
    return _checked(directory, base)


def _checked(directory: Path, base: Path | None) -> ModelFolders:
    model = ModelFolders(directory, directory)
    if model.adapter is None:
        if base is not None:
            raise ArtifactError(f"{directory} is a whole model, not an adapter: it has no base")
        return model
    if read_manifest(directory).kind == "published_model":
        return ModelFolders(directory, directory / BASE)
    expected = str(model.adapter_config()["base_model_name_or_path"])
    digest = read_manifest(base).digest if base else None
    if base is None or digest != expected:
        has = f"but {base} is {digest[:12]}" if digest else "which is missing"
        raise ArtifactError(
            f"{directory} is an adapter of model {expected[:12]}, {has}. An adapter fits only the weights that it was "
            "trained on: use those, or train a new one on the others"
        )
    return ModelFolders(directory, base)
