"""The engine of every custom stage.

    python -m tasks.custom.engine JOB_DIR

Calls the user's function. A model that it wrote is taken over like one that the user brings (tasks/convert/load_hf.py):
tensors, values and tokenizer are checked, and it gets a probe for vLLM.
"""

import json
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.errors import UserError
from infra.tracking.redact import redact_text
from tasks.core.job import Job, StageError, main
from tasks.core.manifest import ArtifactError, read_manifest, remove, verify
from tasks.custom.function import load
from tasks.custom.spec import CustomSpec
from tasks.models.hf_files import ModelFilesError
from tasks.user_code.load_function import described

LICENSE = "license"  # the fact


def work(job: Job) -> None:
    spec = job.spec(CustomSpec)
    inputs = {name: job.input(f"inputs.{name}") for name in spec.inputs}
    job.empty_output()
    if spec.makes == "artifact":
        job.finish(**(_called(spec, inputs, job.output, job) or {}))
        return
    model = job.work / "model"
    remove(model)
    model.mkdir()
    _called(spec, inputs, model, job)
    _take_over(spec, model, job)
    remove(model)


def _called(spec: CustomSpec, inputs: Mapping[str, Path], output: Path, job: Job) -> dict[str, Any] | None:
    """The function's result. Raises StageError that names the line of its file; the log has the traceback."""
    folder = job.directory / "sources"
    folder.mkdir(exist_ok=True)
    function, kind = load(spec, folder)
    try:
        facts: Any = function(kind.model_validate(spec.spec), dict(inputs), output, job)
    except (StageError, ArtifactError, UserError, OSError):
        raise
    except Exception as error:
        print(redact_text(traceback.format_exc()), file=sys.stderr)
        raise StageError(f"{spec.stage}: {described(error, folder)}") from error
    if not isinstance(facts, dict | None):
        raise StageError(f"{spec.stage} returned {facts!r:.60}; a stage returns None or a dictionary of facts")
    try:
        if facts != json.loads(json.dumps(facts, allow_nan=False)):
            raise ValueError
    except (TypeError, ValueError) as error:
        allowed = "by names: float(x) of a NumPy number, a list for a tuple, None for NaN"
        raise StageError(f"{spec.stage} returned {facts!r:.200}; facts are values that JSON has, {allowed}") from error
    for name, path in inputs.items():
        try:
            verify(path, job.inputs[f"inputs.{name}"]["digest"])
        except ArtifactError as error:
            raise StageError(f"{spec.stage} changed its input {name}; write to `output` instead. {error}") from error
    return facts


def _take_over(spec: CustomSpec, folder: Path, job: Job) -> None:
    from tasks.convert.load_hf import take_over  # Transformers: not for a stage that makes no model

    try:
        take_over(job, folder, label=spec.name, license=_license(job))
    except (StageError, ModelFilesError) as error:
        raise StageError(f"the model that {spec.stage} wrote: {error}") from error


def _license(job: Job) -> dict[str, str]:
    """The license that the input models have; empty, with a notice, if they have several."""
    facts = [read_manifest(Path(entry["path"])).facts for entry in job.inputs.values()]
    licenses = {tuple(sorted(license.items())) for each in facts if (license := each.get(LICENSE))}
    if len(licenses) > 1:
        named = " and ".join(sorted(dict(each).get(LICENSE, "another") for each in licenses))
        job.notice(f"the inputs have different licenses ({named}), so none is recorded: set publish.license")
    return dict(licenses.pop()) if len(licenses) == 1 else {}


if __name__ == "__main__":
    main(work)
