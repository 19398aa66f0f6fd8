"""Run the stage that loads an existing Hugging Face model, to evaluate or tune it without pretraining.

    python -m baton.tasks.convert.load_hf JOB_DIR

The output has the model's files unchanged, except parts that vLLM or Transformers would read differently: tensors with
other names than in Transformers are renamed, and config.json and generation_config.json get a missing class and missing
tokens that end a text. A published adapter is merged into its base. The model is loaded once, to check its values and
to write a probe (tasks/models/agreement.py). Pickled weights and remote code are rejected.
"""

import shutil
from pathlib import Path

import transformers
from huggingface_hub import snapshot_download
from transformers import PreTrainedModel

from baton.infra.storage.address import files_in
from baton.infra.storage.durable import remove, write_json
from baton.tasks.convert.base_license import license_notices, license_of
from baton.tasks.convert.check_model import CheckedModel, check_model, errors_named, load
from baton.tasks.convert.load_hf_spec import MODEL_FILES, LoadHFSpec, StartFromSpec
from baton.tasks.convert.published_adapter import merge
from baton.tasks.convert.unconverted_files import adapter_problem, left_out
from baton.tasks.core.job import Job, StageError, main
from baton.tasks.models import tokenizers
from baton.tasks.models.adapter_base import BASE, is_published_adapter
from baton.tasks.models.agreement import check_causal, probe
from baton.tasks.models.fields import generation_notices
from baton.tasks.models.hf_files import CONFIG, GENERATION, HFModelFiles, ModelFilesError, listing, model_in
from baton.tasks.models.model_files import FLOATS, check_values
from baton.tasks.models.tokenizer_files import TEMPLATES

DTYPE_NAMES = {"BF16": "bf16", "F16": "fp16", "F32": "fp32", "F64": "fp64"}


def work(job: Job) -> None:
    spec = job.spec(StartFromSpec)
    try:
        folder = spec.fetch() or _downloaded(spec)
        for notice in license_notices(folder):
            job.notice(notice)
        write_model(job, folder, label="base", license=license_of(folder), chat_template=spec.chat_template)
    except (StageError, ModelFilesError) as error:
        raise StageError(f"start_from.model {spec.model}: {error}") from error


def write_model(
    job: Job, folder: Path, *, label: str, license: dict[str, str], chat_template: str | None = None
) -> None:
    """Write the model in a folder to the job's output. Raises StageError, ModelFilesError."""
    job.progress(0, 2, "parts", now="loading")
    if is_published_adapter(file.name for file in files_in(folder, BASE)):
        merge(folder, merged := job.work / "merged")
        folder = merged
    elif problem := adapter_problem(folder):
        raise StageError(problem)
    files = model_in(folder)
    checked = check_model(folder, files)
    model, _ = load(folder, dtype=FLOATS[files.widest if checked.renamed else files.dtype])
    check_values(model)
    tokenizer = tokenizers.load(folder, chat_template)
    with errors_named():
        probed = probe(model, tokenizer)
    check_causal(model, probed)
    job.progress(1, 2, "parts", now="writing")
    job.empty_output()
    notices = tokenizers.write(folder, job.output, chat_template)
    notices += _write(model, folder, files, checked, job.output)
    if beside := left_out(folder, {*files.weight_files, TEMPLATES}):
        notices.append(f"not part of the model's safetensors, and left out: {listing(beside)}")
    if code := files.config.get("auto_map"):
        notices.append(f"{CONFIG} names code of its own ({code!s:.80}), which is not run: Transformers' class is used")
    notices += _write_ends(folder, files, job.output)
    notices += generation_notices(files.generation)
    for notice in (*notices, *tokenizers.elsewhere(job.output)):
        job.notice(notice)
    probed.write(job.record)
    job.progress(2, 2, "parts")
    job.finish(
        label=label,
        architecture=checked.architecture,
        parameters=sum(weight.numel() for weight in model.parameters()),
        vocab_size=model.config.vocab_size,
        max_positions=model.config.max_position_embeddings,
        dtype=DTYPE_NAMES[files.dtype],
        license=license,
    )
    remove(job.work / "merged")


def _downloaded(spec: LoadHFSpec) -> Path:
    """Download the model of a hub name, and return its folder in the hub's cache. Raises StageError."""
    try:
        return Path(snapshot_download(spec.model, revision=spec.revision, allow_patterns=[*MODEL_FILES]))
    except Exception as error:  # errors of the hub, httpx and the file system
        raise StageError(
            f"cannot be downloaded ({type(error).__name__}: {' '.join(str(error).split())[:500]})"
        ) from error


def _write(model: PreTrainedModel, folder: Path, files: HFModelFiles, checked: CheckedModel, output: Path) -> list[str]:
    """Write weights and config.json, and return notices for the user."""
    notices = []
    if checked.renamed:
        model.generation_config = type(model.generation_config)()  # written by `_write_ends`
        model.save_pretrained(output)
        notices.append("the tensors are written with their names in Transformers, which vLLM reads")
    else:
        for name in files.weight_files:
            shutil.copyfile(folder / name, output / name)
    if checked.unused:
        notices.append(f"tensors that {checked.architecture} does not need are not used: {listing(checked.unused)}")
    shutil.copyfile(folder / CONFIG, output / CONFIG)
    named = files.architecture  # may be a name that vLLM knows but Transformers does not
    if named is None or (named != checked.architecture and hasattr(transformers, named)):
        write_json(output / CONFIG, files.config | {"architectures": [checked.architecture]})
        notices.append(f"{CONFIG} has {checked.architecture} as its architecture in place of {named}")
    return notices


def _write_ends(folder: Path, files: HFModelFiles, output: Path) -> list[str]:
    """Write generation_config.json with every token that ends a generation, since vLLM reads those of this file and of
    the tokenizer, but not config.json's. Return notices for the user."""
    unknown = {*files.eos_ids} - {*files.eos_of_generation, files.eos_of_tokenizer}
    if files.generation and not unknown:
        shutil.copyfile(folder / GENERATION, output / GENERATION)
        return []
    write_json(output / GENERATION, files.generation | {"eos_token_id": files.eos_ids})
    added = ", ".join(map(str, sorted(unknown)))
    return [f"generation also ends at token {added}, which is in {CONFIG} but not in {GENERATION}"] if unknown else []


if __name__ == "__main__":
    main(work)
