"""A model as an engine opens it: a directory of weights, or an adapter together with its base.

An HFModel whose manifest has a `base` holds a model's config and tokenizer, and in `adapter/` a LoRA adapter in PEFT's
format instead of weights; its `base_model_name_or_path` is the base's digest. A PublishedModel has both: the base's
weights, and `adapter/`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.placement.storage import is_bucket
from tasks.job import Job
from tasks.manifest import ArtifactError, read_manifest, verify
from tasks.stored import fetch

ADAPTER = "adapter"  # the folder
BASE = "base"  # the input `model.base` is the base of the input `model`


@dataclass(frozen=True)
class Model:
    """A model's directories."""

    directory: Path  # config and tokenizer
    weights: Path  # of the whole model, or of an adapter's base

    @property
    def adapter(self) -> Path | None:
        """The folder of its adapter, if it is one."""
        folder = self.directory / ADAPTER
        return folder if folder.is_dir() else None

    @property
    def rank(self) -> int:
        """The rank of its adapter."""
        return int(_config(self.directory)["r"])


def model_of(job: Job, name: str = "model") -> Model:
    """An input of a job with its base, their files verified. Raises ArtifactError if the adapter has another base."""
    directory, base = job.input(name), f"{name}.{BASE}"
    return _checked(directory, job.input(base) if base in job.inputs else None)


def open_model(directory: Path, base: Path | None = None) -> Model:
    """The model in an HFModel's or a PublishedModel's directory. An adapter's base is in `base`, or where it was when
    the adapter was trained. Every file is verified. Raises ArtifactError."""
    manifest = verify(directory)
    recorded = manifest.facts.get("base")
    if recorded and base is None:
        place = recorded["place"]
        base = fetch(place, recorded["digest"]) if is_bucket(place) else Path(place)
        if not base.is_dir():
            raise ArtifactError(
                f"{directory} is an adapter, and its base {recorded['digest'][:12]} is no longer in {base}: give its "
                "new location with --base"
            )
    if base is not None:
        verify(base)
    return _checked(directory, base)


def _checked(directory: Path, base: Path | None) -> Model:
    if not (directory / ADAPTER).is_dir():
        if base is not None:
            raise ArtifactError(f"{directory} is a whole model, not an adapter: it has no base")
        return Model(directory, directory)
    if read_manifest(directory).kind == "published_model":
        return Model(directory, directory)
    wanted = str(_config(directory)["base_model_name_or_path"])
    found = read_manifest(base).digest if base else None
    if base is None or found != wanted:
        has = f"but {base} is {found[:12]}" if found else "which is missing"
        raise ArtifactError(
            f"{directory} is an adapter of model {wanted[:12]}, {has}. An adapter fits only the weights that it was "
            "trained on: use those, or train it anew on the others"
        )
    return Model(directory, base)


def _config(directory: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((directory / ADAPTER / "adapter_config.json").read_text())
    return config
