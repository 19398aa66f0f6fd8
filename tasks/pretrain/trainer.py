"""One process's share of a training run: the step, the validation, the loop and the hand-over."""

import json
import math
import shutil
import signal
import time
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tasks.job import Job, StageError
from tasks.manifest import read_manifest
from tasks.pretrain import checkpoint
from tasks.pretrain.batches import Batch, build_datasets, micro_batches
from tasks.pretrain.flops import flops_per_token, peak_flops
from tasks.pretrain.megatron import DEVICE
from tasks.pretrain.model import build_model, transformer_config
from tasks.pretrain.spec import PretrainSpec

# isort: split
from megatron.core import parallel_state
from megatron.core.datasets.gpt_dataset import GPTDataset
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module


class Trainer:
    """One process's share of a training run."""

    def __init__(self, job: Job, spec: PretrainSpec) -> None:
        self.job, self.spec = job, spec
        data = job.input("data")
        self.data_facts = read_manifest(data).facts
        self.vocab_size = spec.model.vocab_size or int(self.data_facts["vocab_size"])
        if self.vocab_size < self.data_facts["vocab_size"]:
            raise StageError(
                f"model.vocab_size {self.vocab_size} is smaller than the tokenizer's {self.data_facts['vocab_size']}"
            )
        self.writer = dist.get_rank() == 0
        self.checkpoints = job.work / "checkpoints"
        self.train_data, self.held_out = build_datasets(spec, data, self.vocab_size, job.work / "index")
        self._check_data_parallel()
        self._build()
        self.stop_requested = False

    def _check_data_parallel(self) -> None:
        ranks = parallel_state.get_data_parallel_world_size()
        if self.spec.global_batch % (self.spec.layout.micro_batch * ranks):
            raise StageError(
                f"global_batch {self.spec.global_batch} cannot be shared by {ranks} processes in micro batches "
                f"of {self.spec.layout.micro_batch}; global_batch must be a multiple of their product"
            )
        self.local_batch = self.spec.global_batch // ranks
        self.offset = parallel_state.get_data_parallel_rank() * self.local_batch

    def _build(self) -> None:
        spec, wanted = self.spec, self.spec.optimizer
        self.config = transformer_config(spec.model, spec.precision)
        model = build_model(spec.model, self.config, self.vocab_size).to(DEVICE)
        wrapped = Float16Module(self.config, model) if spec.precision == "bf16" else model
        ddp_config = DistributedDataParallelConfig(grad_reduce_in_fp32=True)
        self.ddp = DistributedDataParallel(config=self.config, ddp_config=ddp_config, module=wrapped)
        optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=wanted.lr,
                min_lr=wanted.min_lr,
                weight_decay=wanted.weight_decay,
                adam_beta1=wanted.beta1,
                adam_beta2=wanted.beta2,
                adam_eps=wanted.eps,
                clip_grad=wanted.clip_grad,
                bf16=spec.precision == "bf16",
                params_dtype=self.config.params_dtype,
            ),
            [self.ddp],
        )
        scheduler = OptimizerParamScheduler(
            optimizer,
            init_lr=0.0,
            max_lr=wanted.lr,
            min_lr=wanted.min_lr,
            lr_warmup_steps=wanted.warmup_steps,
            lr_decay_steps=spec.steps,
            lr_decay_style=wanted.decay,
            start_wd=wanted.weight_decay,
            end_wd=wanted.weight_decay,
            wd_incr_steps=spec.steps,
            wd_incr_style="constant",
            wsd_decay_steps=wanted.wsd_decay_steps or None,
            lr_wsd_decay_style="cosine",
        )
        self.config.finalize_model_grads_func = finalize_model_grads
        self.config.grad_scale_func = optimizer.scale_loss
        self.state = checkpoint.TrainingState(model, optimizer, scheduler)
        self.forward_backward = get_forward_backward_func()
        self.flops_per_token = flops_per_token(spec.model, self.vocab_size, spec.sequence_length)

    # -- one step --------------------------------------------------------------------------------

    def _loss(self, dataset: GPTDataset, first: int, count: int, forward_only: bool) -> float:
        """Mean loss in nats per token over `count` sequences, over all processes."""
        batches = micro_batches(dataset, first, count, self.spec.layout.micro_batch)
        losses = self.forward_backward(
            forward_step_func=_forward,
            data_iterator=iter(batches),
            model=[self.ddp],
            num_microbatches=len(batches),
            seq_length=self.spec.sequence_length,
            micro_batch_size=self.spec.layout.micro_batch,
            forward_only=forward_only,
        )
        total = torch.stack([part["loss"] for part in losses]).mean()
        dist.all_reduce(total, group=parallel_state.get_data_parallel_group())
        ranks: int = parallel_state.get_data_parallel_world_size()
        return float(total) / ranks

    def step(self) -> dict[str, float]:
        """One optimizer step; returns its metrics."""
        state = self.state
        self.ddp.zero_grad_buffer()
        state.optimizer.zero_grad()
        loss = self._loss(self.train_data, state.samples + self.offset, self.local_batch, forward_only=False)
        learning_rate = float(state.optimizer.param_groups[0]["lr"])
        updated, grad_norm, _ = state.optimizer.step()
        if not updated or math.isnan(loss):
            raise StageError(f"step {state.step + 1}: loss {loss}, gradient norm {grad_norm}: lower optimizer.lr")
        state.scheduler.step(increment=1)
        state.step += 1
        state.samples += self.spec.global_batch
        return {"loss": loss, "grad_norm": float(grad_norm), "lr": learning_rate}

    def validate(self) -> float:
        """Mean loss in nats per token on the first held-out sequences, the same ones each time."""
        self.ddp.eval()
        available = min(self.spec.validation_sequences, len(self.held_out))
        with torch.no_grad():
            loss = self._loss(self.held_out, 0, available, forward_only=True)
        self.ddp.train()
        return loss

    # -- the run ---------------------------------------------------------------------------------

    def resume(self) -> None:
        """Continue from the newest complete checkpoint, if there is one."""
        found = checkpoint.complete(self.checkpoints)
        if found:
            checkpoint.load(self.state, found[-1])
            print(f"continuing from step {self.state.step}", flush=True)
        if self.writer:
            self.job.forget_after(self.state.step)

    def run(self) -> float:
        """Train to the last step; returns the last validation loss."""
        spec, state = self.spec, self.state
        peak = peak_flops(spec.precision)
        tokens = spec.global_batch * spec.sequence_length
        validation = float("nan")
        while state.step < spec.steps:
            started = time.perf_counter()
            metrics = self.step()
            metrics["tokens_per_s"] = tokens / (time.perf_counter() - started)
            if peak:
                ranks = dist.get_world_size()
                metrics["mfu"] = metrics["tokens_per_s"] * self.flops_per_token / (peak * ranks)
            last = state.step == spec.steps
            if last or state.step % spec.validate_every == 0:
                validation = metrics["validation_loss"] = self.validate()
            if self.writer:
                self.job.metric(state.step, **metrics)
                self.job.progress(state.step, spec.steps, "steps", **_shown(metrics))
            stopping = self._any_rank_stopping()
            if last or stopping or state.step % spec.checkpoints.every == 0:
                checkpoint.save(state, self.checkpoints, spec.checkpoints.keep_last, self.writer)
            if stopping and not last:
                raise SystemExit(128 + signal.SIGTERM)
        # a run that was killed while it handed over has no step left to take
        return self.validate() if math.isnan(validation) else validation

    def _any_rank_stopping(self) -> bool:
        flag = torch.tensor([float(self.stop_requested)], device=DEVICE)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def end_on_sigterm(self) -> None:
        """From now on, SIGTERM ends the run after the present step, with a checkpoint."""

        def request(signum: int, frame: FrameType | None) -> None:
            self.stop_requested = True

        signal.signal(signal.SIGTERM, request)

    def hand_over(self, validation_loss: float) -> None:
        """Make the artifact of the last checkpoint."""
        if not self.writer:
            return
        output, spec = self.job.output, self.spec
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir()
        checkpoint.copy_content(checkpoint.complete(self.checkpoints)[-1], output / "checkpoint")
        description = {"model": spec.model.model_dump(), "vocab_size": self.vocab_size, "precision": spec.precision}
        (output / "model.json").write_text(json.dumps(description, indent=1))
        self.job.finish(
            step=self.state.step,
            tokens_seen=self.state.samples * spec.sequence_length,
            parameters=spec.model.parameters(self.vocab_size),
            vocab_size=self.vocab_size,
            sequence_length=spec.sequence_length,
            precision=spec.precision,
            layout={"tensor": 1, "pipeline": 1, "data": dist.get_world_size()},
            validation_loss=validation_loss,
            tokenizer_digest=self.data_facts["tokenizer_digest"],
        )
        shutil.rmtree(self.checkpoints)


def _forward(batches: Iterator[Batch], model: torch.nn.Module) -> tuple[Tensor, Any]:
    """Megatron's forward_step_func: the model's per-token losses, and what makes one loss of them."""
    batch = next(batches)
    # no attention mask: SDPAttention is causal by itself
    losses = model(batch.tokens, batch.position_ids, None, labels=batch.labels)
    return losses, partial(_masked_mean, batch.loss_mask)


def _masked_mean(mask: Tensor, losses: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    loss = (losses.float() * mask).sum() / mask.sum()
    # a clone: the schedule divides the loss it was given in place
    return loss, {"loss": loss.detach().clone()}


def _shown(metrics: dict[str, float]) -> dict[str, str]:
    shown = {"loss": f"{metrics['loss']:.3f}", "tok/s": f"{metrics['tokens_per_s']:,.0f}"}
    if "mfu" in metrics:
        shown["MFU"] = f"{metrics['mfu']:.0%}"
    return shown
