"""Take in a Hugging Face model that was made elsewhere: the chain's entrance for RL alone.

    python -m tasks.convert.adopt JOB_DIR

Out: the model's folder, with safetensors and tokenizer, after it was loaded once. Pickled weights
and code from the model's repository are refused.
"""

from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from tasks.convert.adopt_spec import AdoptSpec
from tasks.convert.left_out import adapter_problem
from tasks.job import Job, StageError, main
from tasks.manifest import remove

DTYPE_NAMES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}

SHOWN = 5  # weights that are missing


def work(job: Job) -> None:
    spec = job.spec(AdoptSpec)
    job.progress(0, 2, "parts", now="loading")
    source = spec.brought() or spec.model
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
    except Exception as error:  # on a bad config transformers raises whatever its arithmetic does
        raise StageError(
            f"start_from.model {spec.model}: not a causal language model that can be loaded: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"
        ) from error
    if missing := sorted(loading["missing_keys"]):  # Transformers gives them random numbers
        names = ", ".join(missing[:SHOWN]) + (f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else "")
        raise StageError(
            f"start_from.model {spec.model}: its safetensors lack {names}; every weight of the model is needed: save "
            "or download it again"
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
    for how_it_was_found in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(how_it_was_found, None)  # Transformers would save it: no part of a result
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
