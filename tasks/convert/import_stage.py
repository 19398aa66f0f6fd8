"""Run the stage that imports a Hugging Face model as Megatron weights, for continued pretraining.

    python -m baton.tasks.convert.import_stage JOB_DIR

The output is a checkpoint of the weights that any layout loads, the unchanged config and tokenizer, and model.json, the
model as a `pretrain` spec. The stage runs in one process without a GPU and never holds the model in memory.
"""

from pathlib import Path

from huggingface_hub import snapshot_download

from baton.tasks.convert.base_license import license_notices, license_of
from baton.tasks.convert.families import family_of
from baton.tasks.convert.from_spec import Untrainable
from baton.tasks.convert.import_model import ImportOptions, description, import_model, open_hugging_face
from baton.tasks.convert.load_hf_spec import MODEL_FILES, LoadHFSpec
from baton.tasks.core.job import Job, main
from baton.tasks.models.errors import ConversionError
from baton.tasks.models.hf_files import listing


def work(job: Job) -> None:
    spec = job.spec(LoadHFSpec)
    folder = spec.fetch() or Path(snapshot_download(spec.model, revision=spec.revision, allow_patterns=[*MODEL_FILES]))
    source = open_hugging_face(folder)
    for notice in license_notices(folder):
        job.notice(notice)
    if source.left_out:
        job.notice(f"not part of the model's safetensors, and left out: {listing(source.left_out)}")
    try:
        about = description(source, None)
    except Untrainable as error:
        raise ConversionError(f"{spec.model}: `pretrain` cannot continue training this model: {error}") from error
    import_model(
        source,
        job.output,
        ImportOptions(replace=True),
        lambda done, total: job.progress(done, total, "bytes"),
        _refuse_not_finite,
    )
    job.finish(
        architecture=family_of(source.fields).architecture,
        parameters=sum(weight.elements for weight in source.weights),
        vocab_size=about["vocab_size"],
        precision=about["precision"],
        license=license_of(folder),
    )


def _refuse_not_finite(name: str) -> None:
    raise ConversionError(f"{name} has NaN or infinite values, from which no model can be trained")


if __name__ == "__main__":
    main(work)
