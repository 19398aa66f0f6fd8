"""Load and save the model, checkpoint, record metrics and handle SIGTERM, for all methods that train with TRL.

    setup = prepare(job, SFTSpec)
    trainer = SFTTrainer(args=SFTConfig(**setup.arguments(), …), **setup.model_arguments(), train_dataset=…)
    setup.fit(trainer, METRICS)
    setup.finish(trainer)

Weights are stored and updated in fp32 and used in bf16 (autocast), so that small updates are not lost, and GPUs and
CPUs with AMX run at full speed.
"""

import logging
import math
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Generic, Protocol

import torch
from peft import get_peft_model
from safetensors import SafetensorError
from transformers import TrainerCallback

from baton.infra.process.torchrun_env import COLLECTIVE_S
from baton.infra.storage.disk_errors import full_disk
from baton.infra.storage.durable import remove
from baton.tasks.core.checkpoints import KIND, CheckpointFolder
from baton.tasks.core.job import Job, StageError
from baton.tasks.core.manifest import RECORD, read_manifest, write_manifest
from baton.tasks.core.nodes import nodes_of
from baton.tasks.models.agreement import probe
from baton.tasks.models.model_files import check_values, copy_small_files, is_all, load_causal_lm, save_like
from baton.tasks.models.tokenizers import load
from baton.tasks.models.turns import with_ends
from baton.tasks.posttrain import process
from baton.tasks.posttrain.adapter import merged, peft_config
from baton.tasks.posttrain.adapter_files import base_of, forget_source, source_of, write_adapter
from baton.tasks.posttrain.batches import loader
from baton.tasks.posttrain.encode import IGNORED, RowEncoder
from baton.tasks.posttrain.quantize import load_in_4_bits
from baton.tasks.posttrain.rows import Chosen, note_epochs, select
from baton.tasks.posttrain.spec import LengthLimits, PostTrainSpec, S
from baton.tasks.posttrain.trl_hooks import fsdp
from baton.tasks.posttrain.trl_hooks.checkpoint import full_weights, load_weights, store_by_name
from baton.tasks.posttrain.trl_hooks.step_means import StepMeans, StepMetrics, add_step_means
from baton.tasks.posttrain.trl_hooks.trainer import name_experts, order_by_epoch, score_completions_only, train_in_fp32
from baton.tasks.rows.stored import Row

MAX_CHECKPOINTS = 2  # older ones are removed
LOGGED = "logged/"  # prefix of the rewards' metrics, which are recorded whatever their names are
SIGTERM_EXIT = 128 + signal.SIGTERM

log = logging.getLogger(__name__)


class Stateful(Protocol):
    """State that a checkpoint contains beside TRL's state."""

    def save(self, checkpoint: Path) -> None: ...

    def load(self, checkpoint: Path) -> None: ...


@dataclass(frozen=True)
class Setup(Generic[S]):
    """The job's model and resolved spec, which a method trains."""

    job: Job
    spec: S
    source: Path  # the model's directory
    model: Any
    tokenizer: Any
    limits: LengthLimits
    encoder: RowEncoder

    def arguments(self) -> dict[str, Any]:
        """Return the arguments common to TRL's configs."""
        spec = self.spec
        gpu = torch.cuda.is_available()
        sharded = spec.layout.sharding == "fsdp2"
        if sharded:
            fsdp.allow_cpus()
        return {
            **(fsdp.arguments(self.model, spec.layout.cpu_offload) if sharded else {}),
            "output_dir": str(checkpoints(self.job).path),
            "max_steps": spec.steps,
            "per_device_train_batch_size": spec.micro_batch(),
            "gradient_accumulation_steps": spec.batch_size // (spec.micro_batch() * spec.layout.world),
            "learning_rate": spec.learning_rate,
            "warmup_steps": spec.warmup_steps,
            "weight_decay": spec.weight_decay,
            "seed": spec.seed,
            "bf16": spec.precision == "bf16",
            "use_cpu": not gpu,
            "ddp_timeout": COLLECTIVE_S,
            "gradient_checkpointing": spec.layout.recomputes(gpu),
            "dataloader_pin_memory": gpu,
            "save_strategy": "steps",
            "save_steps": spec.checkpoint_every,
            "save_total_limit": None,  # the Trainer would delete old checkpoints before the new one is on disk
            "logging_steps": 1,
            "logging_nan_inf_filter": False,
            "report_to": "none",
            "disable_tqdm": True,
        }

    def model_arguments(self) -> dict[str, Any]:
        """Return the arguments common to TRL's trainers."""
        adapter = peft_config(self.spec.adapter, self.model) if self.spec.adapter else None
        return {"model": self.model, "processing_class": self.tokenizer, "peft_config": adapter}

    def choose(
        self,
        kind: str,
        enough: float,
        size: Callable[[Any], float] = lambda row: 1,
        encode: Callable[[Row], Any] | None = None,
    ) -> Chosen[Any]:
        """Return the rows that the steps use, encoded by `encode` or by the method's spec."""
        encode = encode or partial(self.spec.encode, kind=kind, encoder=self.encoder)
        ahead = partial(self.encoder.ahead, marked=self.spec.uses_marks(kind))
        return select(self.job, self.spec.seed, self.limits, encode, enough, size, ahead)

    def note(self, what: str, steps: int, batch_size: int, rows: int) -> None:
        """Report to the user if rows are used more than once, and the encoder's notices."""
        note_epochs(self.job, what, steps, batch_size, rows)
        for text in self.encoder.notices():
            self.job.notice(text)

    def fit(
        self,
        trainer: Any,
        metrics: Mapping[str, str],
        stateful: Stateful | None = None,
        initial: Mapping[str, float] | None = None,
    ) -> None:
        """Train from the newest valid checkpoint, if any, to the last step.

        `metrics` maps TRL's names of the recorded metrics to ours; metrics whose names begin with LOGGED are recorded
        too. `initial` is recorded as step 0. On SIGTERM, checkpoints and raises SystemExit(143).
        """
        job = self.job
        add_step_means(trainer)
        order_by_epoch(trainer)
        train_in_fp32(trainer.model)
        store_by_name(trainer)
        if trainer.is_fsdp_enabled:
            fsdp.reduce_in_fp32(trainer)
        if process.BY_TORCHRUN:
            if issubclass(kind := type(trainer), StepMetrics):  # not GRPO's, whose own loader keeps the order of groups
                blank = None if issubclass(kind, StepMeans) else IGNORED
                trainer.get_train_dataloader = partial(loader, trainer, blank)
            torch.manual_seed(trainer.args.seed + trainer.args.process_index)  # seed of dropout
        reporter = Reporter(job, metrics, stateful)
        trainer.add_callback(reporter)
        trainer.model.register_forward_pre_hook(lambda *_: reporter.in_forward_pass())
        checkpoint = process.from_first(reporter.checkpoints.newest() if process.is_first() else None)
        step = reporter.checkpoints.step(checkpoint) if checkpoint else None
        if checkpoint and reporter.nodes:
            checkpoint = reporter.checkpoints.path / checkpoint.name
            with job.heart.repeated():
                reporter.nodes.spread(checkpoint)
        if process.is_first():
            job.forget_after(-1 if step is None else step)
            if step is None and initial:
                job.metric(0, **initial)
        if checkpoint and stateful and process.is_first():
            stateful.load(checkpoint)
        if checkpoint and reporter.checkpoints.step(checkpoint) >= trainer.args.max_steps:
            load_weights(trainer.model, checkpoint)  # the engine was killed after the last step
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

    def finish(self, trainer: Any) -> None:
        """Write the output, then delete the checkpoints. The output is the adapter alone, or `source` with the trained
        weights in `source`'s dtype, with the adapter merged; a model tuned on chat also gets its chat template.
        Collective: rank 0 writes, and the others wait until it has finished, since torchrun waits only 5 minutes for
        the ranks of another machine."""
        spec = self.spec
        self.job.heart.beat(trainer.state.global_step, "hand-over")
        alone = spec.adapter is not None and spec.adapter.output == "adapter"
        weights = full_weights(trainer.model) if alone or self._has_partial_weights() else None
        if process.is_first():
            full_model = trainer.model if weights is None or alone else _with_weights(self.source, spec, weights)
            self._write(trainer, None if alone else merged(full_model), weights)
        process.barrier()

    def _write(self, trainer: Any, model: Any, weights: dict[str, torch.Tensor] | None) -> None:
        """Write the model, or the weights of its adapter if it is None, and seal the output."""
        job, spec = self.job, self.spec
        facts = read_manifest(Path(job.inputs["model"]["path"])).facts | {"label": spec.label or job.stage}
        facts.pop("base", None)
        display: dict[str, Any] = {}
        with _full_disk_as_stage_error(job.output, "the run continues from its last checkpoint"):
            for old in job.output.iterdir() if job.output.exists() else ():
                if old.name != RECORD:  # `old` was left by a killed engine
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
            job.output.mkdir(exist_ok=True)
            if model is not None:
                save_like(model, self.source, job.output)
            elif spec.adapter and weights is not None:
                write_adapter(job, spec.adapter.lora, weights)
                display["base"] = base_of(job)
                facts["base"] = {"digest": display["base"]["digest"]}
                copy_small_files(self.source, job.output)
            if model is not None or not self._has_partial_weights():
                tuned = trainer.model if model is None else model
                probe(tuned, trainer.processing_class).write(job.record)
            self.encoder.write(job.output)
            job.finish(display, **facts)
        checkpoints(job).remove_all()
        forget_source(job)

    def _has_partial_weights(self) -> bool:
        """Return whether the trained model is sharded, or in 4 bits."""
        return self.spec.layout.sharding == "fsdp2" or _in_4_bits(self.spec)


def prepare(job: Job, kind: type[S], dropout: bool = True) -> Setup[S]:
    """Load the job's model, resolve its spec for the model, check the lengths, and report an unusual learning rate.
    Raises StageError."""
    spec = job.spec(kind)
    if spec.layout.world != process.RUNNING:
        raise StageError(f"{process.RUNNING} processes are running; layout needs {spec.layout.world}")
    facts = read_manifest(Path(job.inputs["model"]["path"])).facts
    if warning := spec.rate_warning(facts["parameters"]):
        job.notice(warning)
    spec, source = spec.resolved(facts["parameters"]), source_of(job)
    model, tokenizer = load_model(source, spec, dropout)
    return Setup(job, spec, source, model, tokenizer, limits_of(model, spec), RowEncoder(tokenizer))


def load_model(path: Path, spec: PostTrainSpec, dropout: bool = True) -> tuple[Any, Any]:
    """Load (model, tokenizer) from a Hugging Face directory in fp32. Weights frozen under an adapter stay in bf16 if
    they are stored in bf16, or are loaded in 4 bits. `dropout`: whether to use that of the model's config."""
    process.start()
    if not torch.cuda.is_available():
        score_completions_only()
    tokenizer = load(path)
    frozen = spec.adapter and spec.precision == "bf16" and is_all(torch.bfloat16, path)
    dtype = torch.bfloat16 if frozen else torch.float32
    if _in_4_bits(spec):
        products = torch.bfloat16 if spec.precision == "bf16" else torch.float32
        return load_in_4_bits(path, dtype, products, dropout), tokenizer
    model = load_causal_lm(path, dropout, dtype=dtype)
    check_values(model)
    name_experts(model)
    return model, tokenizer


def limits_of(model: Any, spec: PostTrainSpec) -> LengthLimits:
    """Return the length limits of a row. Raises StageError if they exceed the model's positions."""
    positions = model.config.max_position_embeddings
    limits = spec.limits(positions)
    if max(limits.total, limits.prompt, limits.new) > positions or min(limits.prompt, limits.new) < 1:
        raise StageError(f"{limits.shown}: the model has {positions} positions for both together; lower one of them")
    return limits


def ends(model: Any, encoder: RowEncoder) -> list[int]:
    """Set the tokens that end generation in the model's generation config, and return them. They include the ends of
    turns if the model is tuned on chat."""
    model.generation_config.eos_token_id = with_ends(model.generation_config.eos_token_id, encoder.ends)
    return list(model.generation_config.eos_token_id)


def _in_4_bits(spec: PostTrainSpec) -> bool:
    return spec.adapter is not None and spec.adapter.quantize is not None


def _with_weights(source: Path, spec: PostTrainSpec, weights: dict[str, torch.Tensor]) -> Any:
    """Load `source` in fp32 with these trained weights of the model or of its adapter."""
    model = load_causal_lm(source, dtype=torch.float32)
    if spec.adapter:
        model = get_peft_model(model, peft_config(spec.adapter, model))
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    if not trained <= weights.keys():
        raise StageError(f"weights are missing: {', '.join(sorted(trained - weights.keys()))}")
    model.load_state_dict(weights, strict=False)
    return model


@contextmanager
def _full_disk_as_stage_error(folder: Path, continues: str) -> Iterator[None]:
    """Turn the various exceptions of torch and safetensors for a failed write into StageError."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if not (reason := full_disk(error)):
            raise
        raise StageError(
            f"{folder} could not be written: {reason}. Make room there and start again: {continues}"
        ) from error


def checkpoints(job: Job) -> CheckpointFolder:
    return CheckpointFolder(job.work / "checkpoints", "checkpoint-")


class Reporter(TrainerCallback):
    """Records metrics and progress, sends heartbeats, seals checkpoints and deletes old ones, and stops on SIGTERM."""

    def __init__(self, job: Job, metrics: Mapping[str, str], stateful: Stateful | None) -> None:
        self.job, self.metrics, self.stateful = job, metrics, stateful
        self.checkpoints = checkpoints(job)
        self.nodes = nodes_of(job) if process.lacks_shared_folder(job) else None
        if self.nodes:
            self.nodes.drop(self.checkpoints.path)  # checkpoints of an earlier attempt
        self.stopping = False
        self.step = 0  # number of completed steps

    def in_forward_pass(self) -> None:
        """Send a heartbeat. A forward pass without gradients belongs to the current phase, in which a rollout is
        scored, or a pair is compared with the reference."""
        if torch.is_grad_enabled():
            self.job.heart.beat(self.step, "forward-backward")
        else:
            self.job.heart.repeat()

    @contextmanager
    def until_sigterm(self) -> Iterator[None]:
        """Let SIGTERM in this context stop the training after the current step, with a checkpoint."""

        def stop(signum: int, frame: FrameType | None) -> None:
            self.stopping = True

        before = signal.signal(signal.SIGTERM, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.step = state.global_step
        if process.is_first():
            self.job.progress(state.global_step, state.max_steps, "steps")

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.job.heart.beat(self.step, "data")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.job.heart.beat(self.step, "optimizer")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.stopping = process.any_rank(self.stopping)
        if self.stopping:
            control.should_save = control.should_training_stop = True
        self.step = state.global_step
        self.job.heart.beat(self.step, "checkpoint" if control.should_save else "data")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "loss" not in logs:
            return  # the Trainer's final summary
        values = {ours: float(logs[name]) for name, ours in self.metrics.items() if logs.get(name) is not None}
        values |= {name.removeprefix(LOGGED): float(logs[name]) for name in logs if name.startswith(LOGGED)}
        if torch.cuda.is_available():
            values["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9  # peak so far, including vLLM's
        bad = [f"{name} = {value}" for name, value in values.items() if not math.isfinite(value)]
        if bad:
            raise StageError(
                f"step {state.global_step}: {', '.join(bad)}; the training has diverged, try a lower learning_rate"
            )
        if not process.is_first():
            return
        self.job.metric(state.global_step, **values)
        shown = {name: value for name, value in values.items() if name in ("loss", "reward", "margin")}
        self.job.progress(state.global_step, state.max_steps, "steps", **shown)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        checkpoint = Path(args.output_dir) / f"{self.checkpoints.prefix}{state.global_step}"
        process.barrier()  # all ranks have written their files after it
        if self.nodes:
            with self.job.heart.repeated():
                self.nodes.collect_all(checkpoint)
            self.nodes.drop(self.checkpoints.path)
        if not process.is_first():
            return
        if self.stateful:
            self.stateful.save(checkpoint)
        self.job.sync_metrics()
        write_manifest(checkpoint, KIND, {"step": state.global_step})
        for old in self.checkpoints.complete()[:-MAX_CHECKPOINTS]:
            remove(old)
