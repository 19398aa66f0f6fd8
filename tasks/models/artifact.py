"""A Hugging Face model as an artifact: the output of conversion, post-training and users' functions."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import BaseModel

from baton.infra.paths import located
from baton.infra.text import count
from baton.tasks.artifacts import Artifact
from baton.tasks.core.manifest import ArtifactError
from baton.tasks.core.stored import RECREATE_HINT


class Base(BaseModel):
    """The HFModel that an adapter belongs to."""

    digest: str
    place: str


class HFModel(Artifact):
    """A Hugging Face directory with safetensors, config, generation config and tokenizer. If `base` is set, it is an
    adapter of that model (tasks/models/adapter_base.py)."""

    kind = "hf_model"
    order = 90
    family = "model"
    page = "baton.tasks.convert.page:model"
    # Engines of other libraries and the audit compare their own results with these files.
    checks: ClassVar[Sequence[str]] = ("record/probe.json", "record/conversion.json")
    label: str  # base, or the name of the post-training stage
    architecture: str
    parameters: int
    vocab_size: int
    max_positions: int
    dtype: str
    base: Base | None = None
    license: dict[str, str] = {}  # set for an existing model: see tasks/convert/base_license.py

    def base_model(self) -> "HFModel | None":
        """Return the base of an adapter. Raises ArtifactError if another model is in its place."""
        if self.base is None:
            return None
        base = HFModel.from_place(located(self.base.place))
        if base.digest != self.base.digest:
            raise ArtifactError(
                f"{self.place} is an adapter of model {self.base.digest[:12]}, but {self.base.place} is "
                f"{base.digest[:12]}. {RECREATE_HINT}"
            )
        return base

    def with_base_at(self, place: str) -> "HFModel":
        """Return the same adapter with its base at another location."""
        assert self.base is not None
        return self.model_copy(update={"base": self.base.model_copy(update={"place": place})})

    def detail(self) -> str:
        return f"model, {count(self.parameters)}"
