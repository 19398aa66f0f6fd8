"""One process's part of a pretraining run: the training loop, metrics, checkpoints and the final artifact."""

import json
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import torch.distributed as dist

from baton.infra.process.heartbeat import Phase
from baton.infra.storage.durable import remove
from baton.tasks.core.job import Job, StageError
from baton.tasks.core.manifest import read_manifest
from baton.tasks.core.nodes import nodes_of
from baton.tasks.hardware.flops import cached_peak, flops_per_token
from baton.tasks.models.rates import unusual
from baton.tasks.pretrain.anomaly import Anomaly, AnomalyLog, Watch
from baton.tasks.pretrain.batches import Batch, Samples, build_datasets, index_cache, micro_batches
from baton.tasks.pretrain.canonical import copy_content
from baton.tasks.pretrain.checkpoint import Checkpoints, TrainingState
from baton.tasks.pretrain.init_from import InitialWeights
from baton.tasks.pretrain.megatron import CUDA, DEVICE
from baton.tasks.pretrain.prefetch import Prefetch
from baton.tasks.pretrain.spec import PretrainSpec, Reaction
from baton.tasks.pretrain.train_step import Training

LAYOUT_FACTS = ("tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor", "data")


class Trainer:
    """One process's part of a pretraining run."""

    def __init__(self, job: Job, spec: PretrainSpec) -> None:
        self.job = job
        # The corpus first, then the data sets blended with it
        data = [job.input("data"), *job.input_list("more")]
        self.data_facts = read_manifest(data[0]).facts
        self.vocab_size = spec.model.vocab_size or int(self.data_facts["vocab_size"])
        continued = bool(job.names("start"))
        rate = spec.default_rate(self.vocab_size, continued)
        if spec.optimizer.lr and (warning := unusual(spec.optimizer.lr, rate)):
            job.notice(warning)
        self.spec = spec = spec.resolved(self.vocab_size, continued)
        self.initial = InitialWeights(job, spec, self.vocab_size, self.data_facts["tokenizer_digest"])
        self._check()
        self.writer = dist.get_rank() == 0
        nodes = nodes_of(job)
        # The index is rebuilt if missing, so it is not in work/; ranks that share no folder with rank 0 keep theirs in
        # memory
        with index_cache(job.directory / "index" if nodes is None or nodes.is_first else None) as index:
            self.train_data, self.held_out = build_datasets(spec, data, self.vocab_size, index)
        self.training = Training(spec, self.vocab_size)
        self.state = TrainingState(self.training.chunks, self.training.optimizer, self.training.scheduler)
        self.end_of_text = int(self.data_facts["eos_id"]) if spec.mask_documents else None
        self.prefetch = Prefetch(lambda span: self._batches(self.train_data, span))
        self.watch = Watch(spec.anomalies)
        self.anomalies = AnomalyLog(job.directory, self.watch, self.writer, nodes)
        logs = job.metrics, self.anomalies.path
        self.checkpoints = Checkpoints(job.work / "checkpoints", spec.checkpoints, logs, nodes)
        self.flops_per_token = flops_per_token(spec.model, self.vocab_size, spec.sequence_length)
        self.stop_requested = False

    def _check(self) -> None:
        if self.vocab_size < self.data_facts["vocab_size"]:
            raise StageError(
                f"model.vocab_size {self.vocab_size} is smaller than the tokenizer's {self.data_facts['vocab_size']}"
            )
        if self.spec.layout.device and not CUDA:
            raise StageError(
                f"layout.device is {self.spec.layout.device}, but this machine has no GPU: use a machine with a "
                "GPU, or remove device to train on the CPU"
            )
        if dist.get_world_size() != self.spec.layout.world:
            raise StageError(f"{dist.get_world_size()} processes are running; layout needs {self.spec.layout.world}")
        problems = self.spec.layout_problems(self.vocab_size)
        if problems:
            raise StageError("; ".join(str(problem.under("layout")) for problem in problems))

    # -- one step --------------------------------------------------------------------------------

    def step(self) -> dict[str, float] | None:
        """Run one step. Return its metrics, or None if the run was rolled back to an earlier step."""
        state, training = self.state, self.training
        span = self._span(state.step, state.samples)
        more = state.step + 1 < self.spec.steps
        clock = _Clock()
        self._at("data")
        with clock("data_s"):
            batches = self.prefetch.get(span, self._span(state.step + 1, span.stop) if more else None)
        self._at("forward-backward")
        with clock("forward_backward_s"):
            loss = training.gradients(batches)
        self._at("optimizer")
        with clock("optimizer_s"):
            learning_rate = float(training.optimizer.param_groups[0]["lr"])
            grad_norm = training.gradient_norm()
            anomaly = self.watch.judge(loss, grad_norm, state.losses)
            reaction = self._react(anomaly, span) if anomaly else "continue"
            if reaction == "roll_back":
                self._roll_back(span)
                return None
            if reaction == "continue":
                training.update(grad_norm)
                state.tokens += len(span) * self.spec.sequence_length
                state.losses = self.watch.remember(state.losses, loss)
            training.scheduler.step(increment=1)
        state.step += 1
        state.samples = span.stop
        speed = len(span) * self.spec.sequence_length / clock.total()
        return {
            "loss": loss,
            "grad_norm": grad_norm,
            "lr": learning_rate,
            "tokens_per_s": speed,
            **training.balance(len(batches)),
            **clock.seconds,
            **({"memory_gb": torch.cuda.max_memory_allocated() / 1e9} if CUDA else {}),  # peak so far
        }

    def _at(self, phase: Phase) -> None:
        """Send a heartbeat; the launcher ends a run without heartbeats and reports each rank's phase."""
        self.job.heart.beat(self.state.step, phase)

    def _span(self, step: int, samples: int) -> range:
        """Return the samples that the step after `step` completed ones reads from position `samples` on."""
        return range(samples, samples + self.spec.batch_at(step))

    def _batches(self, dataset: Samples, span: range) -> list[Batch]:
        return micro_batches(dataset, span.start, len(span), self.spec.layout.micro_batch, self.end_of_text)

    def _react(self, anomaly: Anomaly, span: range) -> Reaction:
        """Log an anomalous step, and return the reaction. Raises StageError to stop."""
        step = self.state.step + 1
        reaction = self.anomalies.add(step, anomaly, span, self.train_data)
        if reaction == "stop":
            self.checkpoints.finish()  # so that a restarted run can continue from it
            raise StageError(self.anomalies.stop_message(step, anomaly, span))
        return reaction

    def _roll_back(self, span: range) -> None:
        """Return to the newest checkpoint and continue from it with the samples after `span`."""
        self._at("checkpoint")
        self.checkpoints.resume(self.state)
        self.state.samples = span.stop
        if self.writer:
            self.job.forget_after(self.state.step)

    def validate(self) -> float:
        """Return the mean loss in nats per token on the first held-out sequences of the first data set, always the same
        ones."""
        self._at("validation")
        available = min(self.spec.validation_sequences, len(self.held_out))
        return self.training.evaluate(self._batches(self.held_out, range(available)))

    # -- the run ---------------------------------------------------------------------------------

    def resume(self) -> None:
        """Continue from this run's newest complete checkpoint, if any; otherwise load the initial weights."""
        if self.checkpoints.resume(self.state):
            if self.writer:
                print(f"continuing from step {self.state.step}", flush=True)
        else:
            self.initial.load(self.state)
        if self.writer:
            self.job.forget_after(self.state.step)

    def run(self) -> float:
        """Train to the last step, and return the last validation loss. Raises StageError if an anomaly stops the
        run."""
        with self.prefetch:
            return self._loop()

    def _loop(self) -> float:
        spec, state = self.spec, self.state
        kept = self.job.work / f"peak-flops-{dist.get_rank()}.json"
        peak = cached_peak(kept, spec.precision)
        validation = float("nan")
        if state.step == 0 and spec.anomalies.may_roll_back():
            self._at("checkpoint")
            self.checkpoints.save(state)
        while state.step < spec.steps:
            metrics = self.step()
            self.checkpoints.poll()
            if metrics is None:
                continue
            if peak:
                reached = metrics["tokens_per_s"] * self.flops_per_token / dist.get_world_size()
                if reached > peak:
                    peak = cached_peak(kept, spec.precision, reached) or peak
                metrics["mfu"] = reached / peak
            last = state.step == spec.steps
            if last or state.step % spec.validate_every == 0:
                validation = metrics["validation_loss"] = self.validate()
            if self.writer:
                self.job.metric(state.step, **{name: value for name, value in metrics.items() if math.isfinite(value)})
                self.job.progress(state.step, spec.steps, "steps", **_shown(metrics))
            stopping = self._any_rank_stopping()
            if last or stopping or state.step % spec.checkpoints.every == 0:
                self._at("checkpoint")
                self.checkpoints.save(state)
            if stopping and not last:
                self.checkpoints.finish()
                raise SystemExit(128 + signal.SIGTERM)
        # A run that was killed during hand_over has no steps left
        return self.validate() if math.isnan(validation) else validation

    def _any_rank_stopping(self) -> bool:
        flag = torch.tensor([float(self.stop_requested)], device=DEVICE)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def end_on_sigterm(self) -> None:
        """Let SIGTERM end the run after the current step, with a checkpoint."""

        def request(signum: int, frame: FrameType | None) -> None:
            self.stop_requested = True

        signal.signal(signal.SIGTERM, request)

    def hand_over(self, validation_loss: float) -> None:
        """Create the artifact from the last checkpoint."""
        self._at("hand-over")
        self.checkpoints.finish()
        if not self.writer:
            return
        output, spec = self.job.output, self.spec
        remove(output)
        output.mkdir()
        copy_content(self.checkpoints.complete()[-1], output / "checkpoint")
        description = {"model": spec.model.model_dump(), "vocab_size": self.vocab_size, "precision": spec.precision}
        (output / "model.json").write_text(json.dumps(description, indent=1))
        self.initial.copy_generation_config(output)
        self.anomalies.copy_to(self.job.record)
        self.job.finish(
            {"layout": {name: getattr(spec.layout, name) for name in LAYOUT_FACTS}},
            step=self.state.step,
            tokens_seen=self.state.tokens,
            parameters=spec.model.parameters(self.vocab_size),
            vocab_size=self.vocab_size,
            sequence_length=spec.sequence_length,
            precision=spec.precision,
            validation_loss=validation_loss,
            tokenizer_digest=self.data_facts["tokenizer_digest"],
        )
        remove(self.checkpoints.folder)


class _Clock:
    """Wall time by phase in seconds. Synchronizes the device before each reading."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        if CUDA:
            torch.cuda.synchronize()
        self.seconds[phase] = time.perf_counter() - started

    def total(self) -> float:
        return sum(self.seconds.values())


def _shown(metrics: dict[str, float]) -> dict[str, str]:
    shown = {"loss": f"{metrics['loss']:.3f}", "tok/s": f"{metrics['tokens_per_s']:,.0f}"}
    if "mfu" in metrics:
        shown["MFU"] = f"{metrics['mfu']:.0%}"
    return shown
