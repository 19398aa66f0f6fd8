"""The spec of an existing Hugging Face model, to use without pretraining or to continue pretraining."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from baton.infra.errors import absent
from baton.infra.storage.address import File, digest_of, fetch, files_in, find, selected, state_of
from baton.infra.storage.buckets import StorageError, is_bucket, read
from baton.tasks.convert.unconverted_files import adapter_among
from baton.tasks.core.spec import ByBaton, NotSeen, PathText, Problem, StageSpec
from baton.tasks.models.adapter_base import BASE, is_published_adapter
from baton.tasks.models.hf_files import HFModelFiles, read_model
from baton.tasks.models.tokenizer_files import FILES, TEMPLATES, TOKENIZER, template_problem

HUB_S = 5.0  # time limit of the hub's answer
MODEL_FILES = (*FILES, "*.safetensors", "README.md")  # README.md is the card, with the license
BASE_FILES = (f"{BASE}/*.json", f"{BASE}/*.safetensors")  # base of a published adapter, beside it


_answers: dict[tuple[str, str | None], tuple[bytes, str]] = {}  # config.json, or an error


def ask_hub(model: str, revision: str | None) -> None:
    """Request a model's config.json from the hub, once; `LoadHFSpec.config` uses the answer from then on."""
    import httpx
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    if (model, revision) in _answers:
        return
    try:
        url = hf_hub_url(model, "config.json", revision=revision)
        response = httpx.get(url, headers=build_hf_headers(), timeout=HUB_S, follow_redirects=True)
        answer = response.raise_for_status().content, ""
    except httpx.HTTPStatusError as error:
        answer = b"", f"the hub answers {error.response.status_code} {error.response.reason_phrase}"
    except (httpx.HTTPError, OSError) as error:
        answer = b"", f"the hub does not answer ({error})"
    except ValueError as error:
        answer = b"", f"not a name of the hub: {' '.join(str(error).split())[:200]}"
    _answers[model, revision] = answer


def _cached_config(model: str, revision: str | None) -> bytes:
    """Return config.json in the hub's cache. Raises OSError."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model, "config.json", revision=revision)
    except HFValidationError as error:
        raise OSError(f"not a name of the hub: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(cached, str):
        raise OSError("it is not in the hub's cache")
    return Path(cached).read_bytes()


class LoadHFSpec(StageSpec):
    """An existing Hugging Face causal language model, given by folder, address or hub name."""

    model: PathText = Field(
        min_length=1,
        description="Folder with config.json and safetensors, its address (s3://…, gs://…, az://…, hf://…), or a hub "
        "name (owner/name)",
    )
    revision: str | None = Field(None, description="With a hub name: the commit or tag")
    state: ByBaton[str | None] = Field(
        None, description="State of the folder at the start of the run; filled in by Baton"
    )

    def existing_models(self) -> dict[str, str]:
        return {"model": self.model}

    def folder(self) -> Path | None:
        """Return the local folder, if `model` is a folder or an archive of one. Raises StorageError."""
        if is_bucket(self.model):
            return fetch(self.model) if digest_of(self.model) else None
        path = Path(self.model).expanduser().absolute()
        return path if path.is_dir() or self.model.startswith((".", "/", "~")) else None

    def fetch(self) -> Path | None:
        """Return the local folder, after a download if `model` is an address, or None for a hub name. Raises
        StorageError."""
        if not is_bucket(self.model):
            return self.folder()
        return fetch(self.model, MODEL_FILES if digest_of(self.model) else self._patterns(find(self.model)))

    def local_files(self) -> list[File]:
        """Return the files of this machine that the spec refers to."""
        folder = None if is_bucket(self.model) else self.folder()
        return self._selected(files_in(folder, TEMPLATES, BASE)) if folder else []

    def _selected(self, files: list[File]) -> list[File]:
        """Return the files of a folder that are read."""
        return selected(files, self._patterns(files))

    def _patterns(self, files: list[File]) -> tuple[str, ...]:
        return (*MODEL_FILES, *BASE_FILES) if self._merges_adapter(file.name for file in files) else MODEL_FILES

    def _inner(self, folder: Path) -> tuple[str, ...]:
        """Return the subfolders that are read too."""
        return (BASE,) if self._merges_adapter(file.name for file in files_in(folder, BASE)) else ()

    def _merges_adapter(self, names: Iterable[str]) -> bool:
        """Return whether these files are an adapter and its base, which the stage merges."""
        return False

    def missing(self) -> list[Problem]:
        """Return problems with files that the model's folder lacks, from names and config.json only."""
        if digest_of(self.model):
            return []  # the archive was checked when it was packed
        if is_bucket(self.model):
            try:
                return self._folder_problems({file.name for file in find(self.model)}, self.model)
            except StorageError as error:
                return [NotSeen("model", self.model, f"the address of a model's folder: {error.message}")]
        folder = self.folder()
        if folder is None:
            return []  # a hub name
        if not folder.is_dir():
            return [Problem("model", self.model, f"an existing folder; {absent(folder)}")]
        return self._folder_problems({file.name for file in files_in(folder, BASE)}, str(folder))

    def _folder_problems(self, files: set[str], folder: str) -> list[Problem]:
        names = {name for name in files if "/" not in name}
        if not names:
            return [Problem("model", self.model, "the address of a model's folder; it has no files")]
        problems = []
        if self.config() is None:
            problems.append(
                Problem("model", self.model, "a folder with a valid config.json, as save_pretrained writes")
            )
        if not any(name.endswith(".safetensors") for name in names):
            problems.append(Problem("model", self.model, "a folder with *.safetensors (pickled weights are not read)"))
        if not self._merges_adapter(files) and (problem := adapter_among(names, folder)):
            problems.append(Problem("model", self.model, f"a model without an adapter: {problem}"))
        if TOKENIZER not in names:
            problems.append(Problem("model", self.model, f"a folder with its tokenizer ({TOKENIZER})"))
        return problems

    def described(self) -> HFModelFiles | None:
        """Return the contents of the model's files, from their headers, or None for a hub name. Raises ModelFilesError,
        StorageError."""
        if is_bucket(self.model) and not digest_of(self.model):
            return read_model(tuple(self._selected(find(self.model))))
        folder = self.folder()
        return read_model(tuple(files_in(folder, *self._inner(folder)))) if folder else None

    def max_positions(self) -> int | None:
        """Return the model's positions, if its config is on this machine or at an address."""
        return HFModelFiles(self.config() or {}).positions

    def config(self) -> dict[str, Any] | None:
        """Return config.json, or None if it is missing or not valid JSON."""
        try:
            content = json.loads(self._config())
        except (OSError, ValueError, RecursionError, StorageError):  # RecursionError: deep nesting
            return None
        return content if isinstance(content, dict) else None

    def _config(self) -> bytes:
        if is_bucket(self.model) and not digest_of(self.model):
            return read(f"{self.model.rstrip('/')}/config.json")
        if folder := self.folder():
            return (folder / "config.json").read_bytes()
        content, why = _answers.get((self.model, self.revision), (b"", ""))
        if why:
            raise OSError(why)
        return content or _cached_config(self.model, self.revision)

    def is_on_hub(self) -> bool:
        """Return whether `model` is a name on the hub."""
        return not is_bucket(self.model) and self.folder() is None

    def unread(self) -> str | None:
        """Return the reason why config.json cannot be read from this machine, or None if it can."""
        try:
            return None if self._config() else "it is empty"
        except StorageError as error:
            return error.message
        except OSError as error:
            return error.strerror or str(error)

    def pinned(self) -> "LoadHFSpec":
        """Return a copy with the folder's current state, so that changed weights are not a cache hit. Raises
        StorageError."""
        if digest_of(self.model):
            return self
        if is_bucket(self.model):
            files = self._selected(find(self.model))
        elif folder := self.folder():
            files = files_in(folder, TEMPLATES, *self._inner(folder))
        else:
            return self
        return self.model_copy(update={"state": state_of(files)})


class StartFromSpec(LoadHFSpec):
    """An existing Hugging Face causal language model to tune, evaluate or serve."""

    chat_template: str | None = Field(
        None,
        min_length=1,
        description="Name of the only chat template to use; needed if the model has several and none is called default",
    )

    def _merges_adapter(self, names: Iterable[str]) -> bool:
        return is_published_adapter(names)

    def missing(self) -> list[Problem]:
        folder = None if is_bucket(self.model) else self.folder()
        return super().missing() or (template_problem(folder, self.chat_template) if folder else [])
