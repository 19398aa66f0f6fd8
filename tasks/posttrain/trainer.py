"""What the three TRL engines share: loading and saving the model, checkpoints, metrics, the way to end.

Weights are held and updated in fp32 and used in bf16 (autocast): small updates are not lost, and a
CPU with AMX or a GPU works at its full speed.
"""

import errno
import logging
import math
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
import trl.trainer.utils
from safetensors import SafetensorError, safe_open
from torch.utils.data import Sampler
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.trainer_pt_utils import LengthGroupedSampler

from tasks.checkpoints import KIND, CheckpointFolder
from tasks.job import Job, StageError
from tasks.manifest import RECORD, read_manifest, remove, seal
from tasks.posttrain.chat import Chat, with_end
from tasks.posttrain.spec import Limits, PostTrainSpec

KEEP = 2  # checkpoints
LOGGED = "logged/"  # begins the names of metrics that are recorded whatever they are called: those of rewards
SIGTERM_EXIT = 128 + signal.SIGTERM

log = logging.getLogger(__name__)


def load_model(path: Path) -> tuple[Any, Any]:
    """(model in fp32, tokenizer) of a Hugging Face directory."""
    if not torch.cuda.is_available():
        _score_completions_only()
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return model, tokenizer


def _score_completions_only() -> None:
    """TRL's fused LM head projects only the labelled positions to the vocabulary where it has Triton,
    and every position elsewhere (for the sake of devices that compile each shape anew). Prompts are
    most of our tokens and a CPU compiles nothing, so it may skip them too."""
    trl.trainer.utils._use_triton = lambda device: True


def limits_of(model: Any, spec: PostTrainSpec) -> Limits:
    """How long a row may be. Raises StageError when a prompt and its completion may not fit the model."""
    positions = model.config.max_position_embeddings
    limits = spec.limits(positions)
    if max(limits.total, limits.prompt, limits.new) > positions or min(limits.prompt, limits.new) < 1:
        raise StageError(f"{limits.said}: the model has {positions} positions for both together; lower one of them")
    return limits


def ends(model: Any, tokenizer: Any, chat: Chat | None) -> list[int]:
    """The tokens that end generation, of which the model is told: the end of a turn among them where it chats."""
    end = chat.end if chat else tokenizer.eos_token_id
    model.generation_config.eos_token_id = with_end(model.generation_config.eos_token_id, end)
    return list(model.generation_config.eos_token_id)


def finish(job: Job, model: Any, source: Path, label: str, chat: Chat | None) -> None:
    """Seal the output: `source` with this model's weights, in the number format that `source` has on
    disk, and what chat takes where it was tuned on chat. The checkpoints are deleted when the result is on the disk."""
    with _full_disk_as_stage_error(job.output, "the run continues from its last checkpoint"):
        for old in job.output.iterdir() if job.output.exists() else ():
            if old.name != RECORD:  # what a killed engine left
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        model.to(storage_dtype(source)).save_pretrained(job.output)
        for path in source.iterdir():  # config, generation config, tokenizer: as they were
            if path.suffix in (".json", ".jinja", ".txt", ".model") and not _about_weights(path.name):
                shutil.copy(path, job.output / path.name)
        if chat:
            chat.write(job.output)
        job.finish(**read_manifest(source).facts | {"label": label or job.stage})
    checkpoints(job).remove_all()


@contextmanager
def _full_disk_as_stage_error(folder: Path, continues: str) -> Iterator[None]:
    """torch and safetensors have exceptions of their own for a write that failed."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        full = shutil.disk_usage(folder.parent).free < 1 << 20
        limited = any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
        if not (full or limited):
            raise
        raise StageError(
            f"{folder} could not be written: {error}. Make room there and start again: {continues}"
        ) from error


def _about_weights(name: str) -> bool:
    return name == "manifest.json" or name.endswith(".safetensors.index.json")


def storage_dtype(directory: Path) -> torch.dtype:
    """The number format of the weights on disk."""
    names = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    with safe_open(min(directory.glob("*.safetensors")), "pt") as weights:
        found = {weights.get_slice(key).get_dtype() for key in weights.keys()}  # noqa: SIM118 (not a dict)
    if len(found) != 1 or not found <= names.keys():
        raise StageError(
            f"{directory}: the weights are in {', '.join(sorted(found))}; one of {', '.join(names)} is needed"
        )
    return names[found.pop()]


def arguments(job: Job, spec: PostTrainSpec) -> dict[str, Any]:
    """What SFTConfig, DPOConfig and GRPOConfig are all given."""
    gpu = torch.cuda.is_available()
    return {
        "output_dir": str(checkpoints(job).path),
        "max_steps": spec.steps,
        "per_device_train_batch_size": spec.micro_batch_size,
        "gradient_accumulation_steps": spec.batch_size // spec.micro_batch_size,
        "learning_rate": spec.learning_rate,
        "warmup_steps": spec.warmup_steps,
        "weight_decay": spec.weight_decay,
        "seed": spec.seed,
        "bf16": True,
        "use_cpu": not gpu,
        "gradient_checkpointing": gpu,  # saves memory, which is scarce there only
        "dataloader_pin_memory": gpu,
        "save_strategy": "steps",
        "save_steps": spec.checkpoint_every,
        "save_total_limit": None,  # the Trainer would delete old ones before the new one is on the disk
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "disable_tqdm": True,
    }


class PerEpoch(Sampler[int]):
    """The Trainer's sampler by length, each epoch's order by the seed and the epoch. The Trainer draws it from torch's
    random state, which a resumed run only has again when the order is drawn."""

    def __init__(self, usual: LengthGroupedSampler, trainer: Any) -> None:
        self.usual, self.trainer = usual, trainer

    def __len__(self) -> int:
        return len(self.usual)

    def __iter__(self) -> Iterator[int]:
        epoch = int(self.trainer.state.epoch or 0)
        self.usual.generator = torch.Generator().manual_seed(self.trainer.args.seed + epoch)
        return iter(self.usual)


def order_by_epoch(trainer: Any) -> None:
    """A private hook into transformers 5.17 (`_get_train_sampler`). It can go when the Trainer draws an epoch's order
    after it has restored the random state, as it does not when it continues in a later epoch."""
    usual = trainer._get_train_sampler

    def sampler(*dataset: Any) -> Any:
        found = usual(*dataset)
        return PerEpoch(found, trainer) if isinstance(found, LengthGroupedSampler) else found

    trainer._get_train_sampler = sampler


class Memory(Protocol):
    """What a checkpoint must hold besides TRL's own state."""

    def save(self, checkpoint: Path) -> None: ...

    def load(self, checkpoint: Path) -> None: ...


def fit(
    trainer: Any,
    job: Job,
    metrics: Mapping[str, str],
    memory: Memory | None = None,
    beginning: Mapping[str, float] | None = None,
) -> None:
    """Train from the newest good checkpoint, if any, to the last step.

    `metrics` names what is recorded: TRL's name -> ours, beside what begins with LOGGED; `beginning` is recorded as
    step 0. On SIGTERM: a checkpoint, then SystemExit(143).
    """
    order_by_epoch(trainer)
    reporter = Reporter(job, metrics, memory)
    trainer.add_callback(reporter)
    checkpoint = reporter.checkpoints.newest()
    step = reporter.checkpoints.step(checkpoint) if checkpoint else None
    job.forget_after(-1 if step is None else step)
    if step is None and beginning:
        job.metric(0, **beginning)
    if checkpoint and memory:
        memory.load(checkpoint)
    if step is not None and step >= trainer.args.max_steps:
        trainer._load_from_checkpoint(str(checkpoint))  # killed after the last step: nothing left to train
        return
    if checkpoint:
        log.warning("continuing from %s", checkpoint)
    with (
        reporter.until_sigterm(),
        _full_disk_as_stage_error(reporter.checkpoints.path, "the run continues from the checkpoint before it"),
    ):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if reporter.stopping:
        raise SystemExit(SIGTERM_EXIT)


def checkpoints(job: Job) -> CheckpointFolder:
    return CheckpointFolder(job.work / "checkpoints", "checkpoint-")


class Reporter(TrainerCallback):
    """Metrics and progress out of the trainer; checkpoints sealed and old ones deleted; SIGTERM heeded."""

    def __init__(self, job: Job, metrics: Mapping[str, str], memory: Memory | None) -> None:
        self.job, self.metrics, self.memory = job, metrics, memory
        self.checkpoints = checkpoints(job)
        self.stopping = False

    @contextmanager
    def until_sigterm(self) -> Iterator[None]:
        """While this lasts, SIGTERM ends the training after the step under way, with a checkpoint."""

        def stop(signum: int, frame: FrameType | None) -> None:
            self.stopping = True

        before = signal.signal(signal.SIGTERM, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.job.progress(state.global_step, state.max_steps, "steps")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.stopping:
            control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "loss" not in logs:
            return  # the Trainer's closing summary
        values = {ours: float(logs[name]) for name, ours in self.metrics.items() if logs.get(name) is not None}
        values |= {name.removeprefix(LOGGED): float(logs[name]) for name in logs if name.startswith(LOGGED)}
        if torch.cuda.is_available():
            values["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9  # the most until now, vLLM's in this process
        bad = [f"{name} = {value}" for name, value in values.items() if not math.isfinite(value)]
        if bad:
            raise StageError(
                f"step {state.global_step}: {', '.join(bad)}; the training has diverged, a lower learning_rate helps"
            )
        self.job.metric(state.global_step, **values)
        shown = {name: value for name, value in values.items() if name in ("loss", "reward", "margin")}
        self.job.progress(state.global_step, state.max_steps, "steps", **shown)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        checkpoint = Path(args.output_dir) / f"{self.checkpoints.prefix}{state.global_step}"
        if self.memory:
            self.memory.save(checkpoint)
        self.job.sync_metrics()
        seal(checkpoint, KIND, {"step": state.global_step}, {}, {}, {})
        for old in self.checkpoints.complete()[:-KEEP]:
            remove(old)
