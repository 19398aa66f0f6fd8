"""Compare the files other than weights on both sides of an audit.

For an imported checkpoint, model.json, all of huggingface/, the checkpoint's small files and the conversion record are
compared with the files that an import of this model writes. For a checkpoint that Baton trained, there is less to
compare; `FileComparison.not_compared` lists the parts that were left out.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from baton.tasks.convert.config import FREE
from baton.tasks.convert.export_model import dtype_name, files_beside, generation_config
from baton.tasks.convert.from_spec import Untrainable
from baton.tasks.convert.import_model import HuggingFaceModel, description, precision
from baton.tasks.convert.megatron_model import MegatronModel
from baton.tasks.convert.target import ACCOUNT
from baton.tasks.convert.torch_dist_writer import ABOUT, NO_STATE, SMALL
from baton.tasks.convert.transfer import Entry
from baton.tasks.core.manifest import RECORD
from baton.tasks.models.errors import ConversionError
from baton.tasks.models.fields import read_json
from baton.tasks.models.model_spec import ModelSpec

_SMALL = 1 << 16  # maximum bytes of the checkpoint's files without weights, which have a few hundred
_VERSIONS = ("transformers_version", "_name_or_path")  # fields about the origin of a config.json
_DTYPE = ("dtype", "torch_dtype")
_TOKENS = ("eos_token_id", "pad_token_id")


@dataclass
class FileComparison:
    differences: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)


def compare_files(
    megatron: MegatronModel, hf: HuggingFaceModel, tokenizer: Path | None, entries: list[Entry]
) -> FileComparison:
    """Compare the files. `tokenizer`: the folder that was passed to the export to replace the imported tokenizer."""
    comparison = FileComparison()
    _account(comparison, megatron, hf, entries)
    if megatron.beside:
        _copied(comparison, megatron, hf, tokenizer)
    else:
        names = [path.name for path in files_beside(hf.folder) if path.name != "config.json"]
        comparison.not_compared += [f"{name} (the checkpoint has none)" for name in names]
    if megatron.imported:
        _described(comparison, megatron, hf)
        _small_files(comparison, megatron)
    else:
        comparison.not_compared.append("the checkpoint's common.pt and optimizer (not part of the exported model)")
        if (megatron.folder / "model.json").exists():
            comparison.not_compared.append("training-only fields of model.json (precision, the experts' losses)")
    return comparison


def free_fields(megatron: MegatronModel, hf: HuggingFaceModel) -> tuple[list[str], list[str]]:
    """Return config.json's fields that affect neither weights nor forward pass: (to compare, cannot be compared)."""
    skipped = {*_VERSIONS, *_DTYPE} if _dtype_is_rewritten(megatron, hf) else set(_VERSIONS)
    if megatron.beside is None:
        skipped |= {name for name in _TOKENS if megatron.fields.get(name) is None}
    unknown = sorted(name for name in skipped & set(_TOKENS) if hf.fields.get(name) is not None)
    return sorted(FREE - skipped), unknown


def _dtypes(model: MegatronModel | HuggingFaceModel) -> set[torch.dtype]:
    return set(model.dtypes().values())


def _dtype_is_rewritten(megatron: MegatronModel, hf: HuggingFaceModel) -> bool:
    """Return whether an export rewrites config.json's dtype, as it does without an import, or for a cast."""
    return not megatron.imported or _dtypes(megatron) != _dtypes(hf)


def _copied(comparison: FileComparison, megatron: MegatronModel, hf: HuggingFaceModel, tokenizer: Path | None) -> None:
    """Compare the files that both directions copy byte for byte."""
    assert megatron.beside is not None
    expected = {path.name: path for path in files_beside(megatron.beside)}
    if tokenizer:
        expected |= {
            path.name: path
            for path in files_beside(tokenizer)
            if path.name not in ("config.json", "generation_config.json")
        }
    actual = {path.name: path for path in files_beside(hf.folder)}
    for name in sorted(expected.keys() | actual.keys()):
        if name == "generation_config.json" and name not in expected:  # an export creates one
            if actual[name].read_text() != generation_config(read_json(hf.folder / "config.json"), tokenizer):
                comparison.differences.append(f"{name}: the checkpoint has none, and this is not what an export writes")
        elif name not in expected or name not in actual:
            where = megatron.beside if name not in expected else hf.folder
            comparison.differences.append(f"{name}: is missing in {where}")
        elif expected[name].read_bytes() != actual[name].read_bytes():
            if name != "config.json":
                comparison.differences.append(f"{name}: {actual[name]} differs from {expected[name]}")
            else:
                _config(comparison, megatron, hf)


def _config(comparison: FileComparison, megatron: MegatronModel, hf: HuggingFaceModel) -> None:
    """Compare two config.json files that are not identical, since a cast changes the dtype field and nothing else."""
    assert megatron.beside is not None
    expected, actual = (read_json(folder / "config.json") for folder in (megatron.beside, hf.folder))
    names = sorted(name for name in expected.keys() | actual.keys() if expected.get(name) != actual.get(name))
    for name in names:
        if name in _DTYPE and _dtype_is_rewritten(megatron, hf):
            if actual.get(name) not in (None, dtype_name(_dtypes(hf))):
                comparison.differences.append(f"config.json: {name} is {actual[name]!r}, which the weights are not")
        elif name in _DTYPE or name in _VERSIONS:  # audit.py compares the other fields, with defaults filled in
            comparison.differences.append(
                f"config.json: {name} is {actual.get(name)!r}, but {expected.get(name)!r} in {megatron.beside}"
            )
    if not names and _dtypes(megatron) == _dtypes(hf):
        comparison.differences.append(f"config.json: has the fields of {megatron.beside}/config.json, but other bytes")


def _described(comparison: FileComparison, megatron: MegatronModel, hf: HuggingFaceModel) -> None:
    """Compare model.json with what an import of this model writes."""
    path = megatron.folder / "model.json"
    try:
        expected = description(hf, None)
    except Untrainable as error:
        if path.exists():
            comparison.differences.append(f"{path}: exists, but `pretrain` has no spec for this model ({error})")
        return
    first = megatron.checkpoint.tensors[megatron.keys[megatron.weights[0].key]].dtype
    expected["precision"] = precision(first)
    try:
        about = read_json(path)
        about["model"] = ModelSpec.model_validate(about["model"]).model_dump(mode="json")
    except (ConversionError, ValueError, KeyError) as error:
        comparison.differences.append(f"{path}: cannot be read ({' '.join(str(error).split())[:300]})")
        return
    comparison.differences += [f"{path}: {difference}" for difference in _differences(expected, about, "")]


def _differences(expected: Any, got: Any, name: str) -> list[str]:
    """Return descriptions of the values that differ, by their path."""
    if isinstance(expected, dict) and isinstance(got, dict):
        return [
            difference
            for key in sorted(expected.keys() | got.keys())
            for difference in _differences(expected.get(key), got.get(key), f"{name}.{key}" if name else key)
        ]
    same = type(expected) is type(got) and expected == got
    return [] if same else [f"{name} is {got!r}; an import of this model writes {expected!r}"]


def _small_files(comparison: FileComparison, megatron: MegatronModel) -> None:
    """Compare the small files in checkpoint/ with what an import writes."""
    folder = megatron.checkpoint.folder
    try:
        about = read_json(folder / "metadata.json")
        if about != ABOUT:
            comparison.differences.append(f"{folder / 'metadata.json'}: is {about!r}; an import writes {ABOUT!r}")
    except ConversionError as error:
        comparison.differences.append(str(error))
    for name, content in (("common.pt", {}), (NO_STATE, [None])):
        path = folder / name
        try:
            if path.stat().st_size > _SMALL:
                raise ValueError(f"{path.stat().st_size} bytes, a few hundred are expected")
            same = torch.load(path, weights_only=True) == content
        except Exception as error:  # torch.load raises many types for a damaged archive
            comparison.differences.append(f"{path}: cannot be read ({' '.join(str(error).split())[:200]})")
            continue
        if not same:
            comparison.differences.append(f"{path}: does not contain {content!r}, as an import writes")
    known = {*megatron.checkpoint.files(), *SMALL}
    extra = sorted(path.name for path in folder.iterdir() if path.name not in known)
    comparison.differences += [f"{folder / name}: does not belong to the checkpoint" for name in extra]


def _account(comparison: FileComparison, megatron: MegatronModel, hf: HuggingFaceModel, entries: list[Entry]) -> None:
    """Compare record/conversion.json. After a cast, each side's record describes the other side before the cast."""
    weights = {item.megatron: [item.shape, item.dtype, item.digest] for item in entries}
    parts = {part.name: [part.shape, part.dtype, part.digest] for item in entries for part in item.parts}
    same_dtypes = _dtypes(megatron) == _dtypes(hf)
    for folder, weights_too, parts_too in ((megatron.folder, True, same_dtypes), (hf.folder, same_dtypes, True)):
        path = folder / RECORD / ACCOUNT
        if not path.exists():
            continue
        expected = (weights if weights_too else {}) | (parts if parts_too else {})
        got = {}
        try:
            for entry in read_json(path)["weights"]:
                if weights_too:
                    got[entry["megatron"]] = [entry["shape"], entry["dtype"], entry["digest"]]
                if parts_too:
                    got |= {part["name"]: [part["shape"], part["dtype"], part["digest"]] for part in entry["parts"]}
        except (ConversionError, KeyError, TypeError) as error:
            comparison.differences.append(f"{path}: cannot be read ({error!r})")
            continue
        wrong = sorted(name for name in expected.keys() | got.keys() if expected.get(name) != got.get(name))
        comparison.differences += [f"{path}: does not match {name}" for name in wrong]
