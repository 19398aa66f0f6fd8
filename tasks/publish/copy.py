"""Copy a model's files into the published directory."""

import os
import shutil
from pathlib import Path
from typing import Any

from baton.infra.storage.durable import NO_LINK, remove, write_json
from baton.tasks.core.manifest import MANIFEST, RECORD
from baton.tasks.models.adapter_base import ADAPTER, ADAPTER_CONFIG, BASE, ModelFolders
from baton.tasks.models.hf_files import INDEX, tensors_in
from baton.tasks.models.turns import copy_turns

CARD = "README.md"
LINK_BYTES = 1 << 20  # files of at least this size are linked: weights are never edited in place, but a config may be


def copy_model(model: ModelFolders, output: Path, linked: bool = True) -> None:
    """Fill `output` with the model's files, large ones as hard links where possible, unless not `linked`. An adapter is
    published with its base, so that Transformers loads both from the folder: the adapter's files beside the config, the
    base's in `base/`, and an index of the base's tensors. `base/` has the tuned model's tokenizer, chat template and
    generation config, so that a program that loads the adapter onto it stops where the tuned model does. The manifest,
    the record and an existing card are not copied."""
    remove(output)  # left by an attempt that was killed
    copy_files(model.directory, output, linked)
    if model.adapter is None:
        return
    shutil.rmtree(output / ADAPTER)
    copy_files(model.adapter, output, linked)
    # with "./" PEFT does not mistake it for a name on the hub if the current folder is another
    write_json(output / ADAPTER_CONFIG, model.adapter_config() | {"base_model_name_or_path": f"./{BASE}"})
    copy_files(model.weights, output / BASE, linked)
    copy_turns(output, output / BASE)
    write_json(output / INDEX, _index(model.weights))


def copy_files(source: Path, target: Path, linked: bool = True) -> None:
    """Copy a folder's files, but no manifest, record or card. Large ones become hard links where possible, unless not
    `linked`."""
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if path.is_file() and name.parts[0] not in (MANIFEST, RECORD, CARD):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            _link_or_copy(path, target / name, linked)


def _index(base: Path) -> dict[str, Any]:
    """Return the index of a base's tensors, with file names relative to the folder above `base/`."""
    tensors = tensors_in(base)
    size = sum(tensor.end - tensor.begin for tensor in tensors.values())
    weight_map = {name: f"{BASE}/{tensor.file.name}" for name, tensor in tensors.items()}
    return {"metadata": {"total_size": size}, "weight_map": weight_map}


def _link_or_copy(source: Path, target: Path, linked: bool) -> None:
    if linked and source.stat().st_size >= LINK_BYTES:
        try:
            os.link(source.resolve(), target)  # an input is a folder of links
            return
        except OSError as error:
            if error.errno not in NO_LINK:
                raise
    shutil.copyfile(source, target)
