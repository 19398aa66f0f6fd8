"""The engine of every custom stage.

    python -m baton.tasks.custom.engine JOB_DIR

The engine calls the user's function. A model that the function writes is imported like a user's existing model
(tasks/convert/load_hf.py): tensors, values and tokenizer are checked, and a probe for vLLM is added.
"""

import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baton.infra.errors import UserError
from baton.infra.storage.durable import remove
from baton.infra.tracking.redact import redact_text
from baton.tasks.core.job import Job, StageError, main
from baton.tasks.core.manifest import ArtifactError, read_manifest, verify
from baton.tasks.custom.function import load, own_fields
from baton.tasks.custom.output import check_artifact, check_model, checked_facts
from baton.tasks.custom.spec import CustomSpec
from baton.tasks.models.hf_files import ModelFilesError, listing
from baton.tasks.user_code.load_function import described

LICENSE = "license"  # name of the fact


def work(job: Job) -> None:
    spec = job.spec(CustomSpec)
    inputs = {name: job.input(f"inputs.{name}") for name in spec.inputs}
    job.empty_output()
    if spec.makes == "artifact":
        facts = _called(spec, inputs, job.output, job)
        if removed := check_artifact(job.output, spec.stage):
            job.notice(f"empty folders are no part of an artifact: {listing(removed)}")
        job.finish(**facts)
        return
    model = job.work / "model"
    remove(model)
    model.mkdir()
    _called(spec, inputs, model, job)
    try:
        unused = check_model(model)
    except (StageError, ModelFilesError) as error:
        raise StageError(f"the model that {spec.stage} wrote: {error}") from error
    if unused:
        job.notice(f"left out of the model, whose card is written when it is published: {', '.join(unused)}")
    _write_model(spec, inputs, model, job)
    remove(model)


def _called(spec: CustomSpec, inputs: Mapping[str, Path], output: Path, job: Job) -> dict[str, Any]:
    """Call the function and return its facts. Raises StageError with the line of its file; the log has the
    traceback."""
    folder = job.directory / "sources"
    folder.mkdir(exist_ok=True)
    function, kind = load(spec, folder)
    try:
        returned = function(own_fields(kind, spec), dict(inputs), output, job)
    except (StageError, ArtifactError, UserError, OSError) as error:
        if isinstance(error, FileNotFoundError) and Path(str(error.filename)).is_relative_to(folder):
            beside = "data files beside a stage's source are not copied with it: provide data as a set of rows"
            raise StageError(f"{spec.stage}: {described(error, folder)}; {beside}") from error
        raise
    except (Exception, SystemExit) as error:
        print(redact_text(traceback.format_exc()), file=sys.stderr)
        way_out = "; return to end a stage, raise an exception to fail" if isinstance(error, SystemExit) else ""
        raise StageError(f"{spec.stage}: {described(error, folder)}{way_out}") from error
    facts = checked_facts(returned, spec.stage, of_model=spec.makes == "model")
    for name, path in inputs.items():
        try:
            verify(path, job.inputs[f"inputs.{name}"]["digest"])
        except ArtifactError as error:
            raise StageError(f"{spec.stage} changed its input {name}; write to `output` instead. {error}") from error
    return facts


def _write_model(spec: CustomSpec, inputs: Mapping[str, Path], folder: Path, job: Job) -> None:
    from baton.tasks.convert.load_hf import write_model  # Transformers, which only a stage that makes a model needs
    from baton.tasks.custom.turns import inherit_turns

    models = {name: path for name, path in inputs.items() if read_manifest(path).kind == "hf_model"}
    try:
        inherit_turns(job, folder, models)
        write_model(job, folder, label=spec.name, license=_license(job))
    except (StageError, ModelFilesError) as error:
        raise StageError(f"the model that {spec.stage} wrote: {error}") from error


def _license(job: Job) -> dict[str, str]:
    """Return the license of the input models; empty, with a notice, if they have several."""
    facts = [read_manifest(Path(entry["path"])).facts for entry in job.inputs.values()]
    licenses = {
        tuple(sorted(license.items())) for each in facts if isinstance(license := each.get(LICENSE), dict) and license
    }
    if len(licenses) > 1:
        named = " and ".join(sorted(dict(each).get(LICENSE, "another") for each in licenses))
        job.notice(f"the inputs have different licenses ({named}), so none is recorded: set publish.license")
    return dict(licenses.pop()) if len(licenses) == 1 else {}


if __name__ == "__main__":
    main(work)
