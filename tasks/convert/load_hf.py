"""The stage that loads an existing Hugging Face model, to evaluate or tune it without pretraining.

    python -m tasks.convert.load_hf JOB_DIR

Out: the model's folder with safetensors and tokenizer, loaded and saved once. Pickled weights and remote code are
rejected.
"""

from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from tasks.convert.load_hf_spec import LoadHFSpec
from tasks.convert.unconverted_files import adapter_problem
from tasks.job import Job, StageError, main
from tasks.manifest import remove

DTYPE_NAMES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}

SHOWN = 5  # missing weights named in the error


def work(job: Job) -> None:
    spec = job.spec(LoadHFSpec)
    job.progress(0, 2, "parts", now="loading")
    source = spec.fetch() or spec.model
    if isinstance(source, Path) and (problem := adapter_problem(source)):
        raise StageError(f"start_from.model {spec.model}: {problem}")
    try:
        config = AutoConfig.from_pretrained(source, revision=spec.revision, trust_remote_code=False)
        model, loading = AutoModelForCausalLM.from_pretrained(
            source,
            revision=spec.revision,
            trust_remote_code=False,
            use_safetensors=True,
            dtype="auto",
            output_loading_info=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(source, revision=spec.revision, trust_remote_code=False)
    except Exception as error:  # transformers does not validate configs: any exception can occur
        raise StageError(
            f"start_from.model {spec.model}: cannot be loaded as a causal language model: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"
        ) from error
    if missing := sorted(loading["missing_keys"]):  # transformers initializes them randomly
        names = ", ".join(missing[:SHOWN]) + (f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else "")
        raise StageError(
            f"start_from.model {spec.model}: its safetensors lack {names}; save or download the model again"
        )
    if absent := [name for name in ("vocab_size", "max_position_embeddings") if getattr(config, name, None) is None]:
        raise StageError(
            f"start_from.model {spec.model}: its config has no {' and no '.join(absent)}; choose a decoder for text "
            "with a limited context"
        )
    if tokenizer.eos_token_id is None:
        raise StageError(f"start_from.model {spec.model}: its tokenizer has no eos token; set one and save it again")
    if len(tokenizer) > config.vocab_size:
        raise StageError(
            f"start_from.model {spec.model}: vocabulary {config.vocab_size} is smaller than its tokenizer's "
            f"{len(tokenizer)}"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    job.progress(1, 2, "parts", now="writing")
    remove(job.output)
    if model.generation_config is None:
        model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id)
    model.save_pretrained(job.output)
    for name in ("is_local", "local_files_only"):  # where it was loaded from, which transformers would save
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.save_pretrained(job.output)
    dtype = str(model.dtype).removeprefix("torch.")
    job.progress(2, 2, "parts")
    job.finish(
        label="base",
        architecture=type(model).__name__,
        parameters=sum(weight.numel() for weight in model.parameters()),
        vocab_size=config.vocab_size,
        max_positions=config.max_position_embeddings,
        dtype=DTYPE_NAMES.get(dtype, dtype),
    )


if __name__ == "__main__":
    main(work)
