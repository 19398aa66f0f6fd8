"""The names that TRL, Axolotl, LLaMA-Factory, torchtune and verl have for fields of a recipe."""

from collections.abc import Collection

_LENGTH = "max_new_tokens; a sequence has at most max_prompt_tokens + max_new_tokens"
_STEPS = "steps; it counts optimizer steps, and the plan shows the epochs"
_PIECE = "layout.micro_batch; `batch_size` counts all rows of a step"

# the fields with the same meaning, each with an explanation: their paths from the section that has the name, of which
# the first that exists there is proposed
FIELDS: dict[str, tuple[str, ...]] = {
    "base_model": ("start_from", "init_from"),
    "bf16": ("precision",),
    "completion_only_loss": ("loss",),
    "cutoff_len": (_LENGTH, "sequence_length"),
    "dataset": ("data", "source", "corpus"),
    "dataset_name": ("data", "source", "corpus"),
    "dataset_path": ("data", "path", "corpus"),
    "datasets": ("data", "sources", "corpus"),
    "deepspeed": ("layout.sharding",),
    "dpo": ("post_training; a list of stages, such as `- dpo: {…}`",),
    "epochs": (_STEPS,),
    "eval_steps": ("validate_every",),
    "fp16": ("precision",),
    "fsdp": ("layout.sharding",),
    "global_batch_size": ("batch_size", "global_batch"),
    "gpu_memory_utilization": ("gpu_memory_share",),
    "gradient_accumulation_steps": (_PIECE, "layout.micro_batch"),
    "gradient_checkpointing": ("layout.gradient_checkpointing", "layout.recompute"),
    "group_size": ("generations",),
    "grpo": ("post_training; a list of stages, such as `- grpo: {…}`",),
    "hidden_size": ("hidden", "model.hidden"),
    "intermediate_size": ("ffn_hidden", "model.ffn_hidden"),
    "kl_beta": ("beta",),
    "kl_coef": ("beta",),
    "kto": ("post_training; a list of stages, such as `- kto: {…}`",),
    "learning_rate": ("optimizer.lr",),
    "load_in_4bit": ("adapter.quantize",),
    "lora": ("adapter.lora",),
    "lora_alpha": ("adapter.lora.alpha",),
    "lora_dropout": ("adapter.lora.dropout",),
    "lora_r": ("adapter.lora.rank",),
    "lora_rank": ("adapter.lora.rank",),
    "lora_target": ("adapter.lora.targets",),
    "lora_target_modules": ("adapter.lora.targets",),
    "lr": ("learning_rate", "optimizer.lr"),
    "lr_scheduler_type": ("optimizer.decay",),
    "max_completion_length": ("max_new_tokens",),
    "max_grad_norm": ("optimizer.clip_grad",),
    "max_length": (_LENGTH, "sequence_length"),
    "max_position_embeddings": ("max_positions", "model.max_positions"),
    "max_prompt_length": ("max_prompt_tokens",),
    "max_response_length": ("max_new_tokens",),
    "max_seq_len": (_LENGTH, "sequence_length"),
    "max_seq_length": (_LENGTH, "sequence_length"),
    "max_steps": ("steps",),
    "min_learning_rate": ("optimizer.min_lr",),
    "model": ("start_from", "init_from"),
    "model_name_or_path": ("start_from", "init_from"),
    "nnodes": ("layout.nodes",),
    "nproc_per_node": ("layout.processes",),
    "num_attention_heads": ("heads", "model.heads"),
    "num_epochs": (_STEPS,),
    "num_generations": ("generations",),
    "num_hidden_layers": ("layers", "model.layers"),
    "num_key_value_heads": ("kv_heads", "model.kv_heads"),
    "num_layers": ("layers", "model.layers"),
    "num_processes": ("layout.processes",),
    "num_train_epochs": (_STEPS,),
    "peft_config": ("adapter",),
    "per_device_train_batch_size": (_PIECE, "layout.micro_batch"),
    "pipeline_parallel_size": ("layout.pipeline",),
    "pretrained_model_name_or_path": ("start_from", "init_from"),
    "random_seed": ("seed",),
    "reward_funcs": ("rewards",),
    "reward_functions": ("rewards",),
    "rollout_n": ("generations",),
    "sample_packing": ("packing",),
    "save_interval": ("checkpoint_every", "checkpoints.every"),
    "save_steps": ("checkpoint_every", "checkpoints.every"),
    "save_total_limit": ("checkpoints.keep_last",),
    "sequence_len": (_LENGTH, "sequence_length"),
    "sft": ("post_training; a list of stages, such as `- sft: {…}`",),
    "tensor_parallel_size": ("tensor_parallel", "layout.tensor"),
    "torch_dtype": ("precision", "dtype"),
    "train_batch_size": ("batch_size", "global_batch"),
    "train_dataset": ("data",),
    "train_iters": ("steps",),
    "train_on_inputs": ("loss",),
    "use_peft": ("adapter",),
    "val_interval": ("validate_every",),
    "vllm_gpu_memory_utilization": ("gpu_memory_share",),
    "warmup_ratio": ("warmup_steps; by default a tenth of the steps", "optimizer.warmup_steps"),
    "weight_decay": ("optimizer.weight_decay",),
}

# names without such a field
ADVICE = {
    "hub_model_id": "`publish.name` is the model's name in MLflow's registry",
    "logging_steps": "every step is recorded",
    "output_dir": "results are below $BATON_HOME",
    "push_to_hub": "`publish.name` is the model's name in MLflow's registry",
    "report_to": "MLflow has every run, at the address MLFLOW_TRACKING_URI",
    "run_name": "`name`, at the top of the recipe, is the run's name",
    "wandb_project": "MLflow has every run, at the address MLFLOW_TRACKING_URI",
}


def proposal(name: str, fields: Collection[str]) -> str:
    """Return what to write in place of a field `name` in a section with these fields, or "" if the name is unknown."""
    for field in FIELDS.get(name, ()):
        path, _, explanation = field.partition("; ")
        if path.partition(".")[0] in fields:
            return f"is called {path} here" + (f"; {explanation}" if explanation else "")
    return ADVICE.get(name, "")
