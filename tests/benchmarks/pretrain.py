"""`python -m tests.benchmarks.pretrain [--sizes 10m 50m] [--sequence N] [--rounds N] [--quick] [--profile]`

Compare Baton's pretraining engine with the Hugging Face Trainer (eager and torch.compile) and a plain PyTorch loop,
with the same model (Qwen3's shape), batch, sequence and precision. Each contender is a separate process with the
threads and settings that its users start it with; the contenders take turns of a few steps each, while the others wait.
A step is complete: data, forward, backward, gradient norm, clipping, AdamW, schedule, and reading the loss.

Each side has its own form of bf16 with fp32 master weights. Hugging Face: the weights are fp32, and autocast rounds
them to bf16 in each step; norms, softmax and loss are in fp32 (`TrainingArguments(bf16=True)`, likewise in the plain
loop). Baton: the model is bf16, gradients are accumulated in fp32 and the optimizer works in fp32 (Megatron's
Float16Module and master weights). Optimizers: fused AdamW on all sides.

With a GPU the size is `gpu`: 1 B parameters, sequence 4096.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from baton.infra.process.launch import SHORT_WAITS
from baton.tasks.models.model_spec import ModelSpec
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.optimizer_spec import OptimizerSpec
from baton.tasks.pretrain.spec import PretrainSpec
from tests.benchmarks.harness import median_ratio, report, side_by_side

ENDLESS = 10_000  # number of steps that the contenders are configured for
WARM_UP = 4


@dataclass(frozen=True)
class Size:
    model: ModelSpec  # includes the vocabulary size
    batch: int  # sequences, all in one micro batch
    sequence: int
    steps: int  # steps in one round

    @property
    def vocabulary(self) -> int:
        return self.model.vocab_size or 0

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence


def _shape(layers: int, hidden: int, heads: int, head_dim: int, ffn_hidden: int, vocabulary: int) -> ModelSpec:
    return ModelSpec(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads // 2,
        head_dim=head_dim,
        ffn_hidden=ffn_hidden,
        vocab_size=vocabulary,
        max_positions=4096,
    )


SIZES = {
    "10m": Size(_shape(10, 256, 4, 64, 768, 8192), batch=8, sequence=512, steps=3),
    "50m": Size(_shape(12, 512, 8, 64, 1792, 16384), batch=4, sequence=512, steps=1),
    "gpu": Size(_shape(20, 2048, 16, 128, 5632, 32768), batch=4, sequence=4096, steps=10),
}
TARGETS = {"hf_eager": 1.3, "hf_compiled": 1.1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, help="default: 10m 50m, or gpu where there is one")
    parser.add_argument("--sequence", type=int, help="tokens in a sequence; the tokens in a step stay the same")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="the smallest size, two rounds: does it work?")
    parser.add_argument("--profile", action="store_true", help="where Baton's time goes, too")
    arguments = parser.parse_args()
    names, rounds = arguments.sizes or _sizes(), arguments.rounds
    if arguments.quick:
        names, rounds = names[:1], 2
    rows: list[tuple[str, str]] = []
    figures: dict[str, float] = {}
    for name in names:
        size = SIZES[name]
        if arguments.sequence:
            size = replace(size, sequence=arguments.sequence, batch=size.tokens // arguments.sequence)
        with tempfile.TemporaryDirectory() as folder:
            compare(name, size, rounds, Path(folder), arguments.profile, rows, figures)
    report("pretrain", rows, figures)


def _sizes() -> list[str]:
    import torch

    return ["gpu"] if torch.cuda.is_available() else ["10m", "50m"]


def compare(
    name: str,
    size: Size,
    rounds: int,
    folder: Path,
    profile: bool,
    rows: list[tuple[str, str]],
    figures: dict[str, float],
) -> None:
    from baton.tasks.hardware.flops import flops_per_token, peak_flops

    write_data(folder / "data", size)
    contenders = {contender: Remote(contender, size, folder) for contender in CONTENDERS}
    try:
        parameters = {contender: remote.take(WARM_UP)["parameters"] for contender, remote in contenders.items()}
        assert set(parameters.values()) == {size.model.parameters(size.vocabulary)}, parameters
        times = side_by_side({each: partial(remote.take, size.steps) for each, remote in contenders.items()}, rounds)
        split = contenders["baton"].last
        profiled = contenders["baton"].take(1, profiling=True)["profile"] if profile else ""
    finally:
        for remote in contenders.values():
            remote.stop()
    peak = peak_flops("bf16")
    per_token = flops_per_token(size.model, size.vocabulary, size.sequence)
    rows.append((name, f"{parameters['baton'] / 1e6:.1f} M parameters, {size.batch} x {size.sequence} tokens, bf16"))
    for contender, seconds in times.items():
        speed = size.tokens * size.steps / statistics.median(seconds)
        mfu = f", MFU {speed * per_token / peak:.0%}" if peak else ""
        ratio = ""
        if contender != "baton":
            ratios = sorted(theirs / ours for theirs, ours in zip(seconds, times["baton"], strict=True))
            figures[f"{name}_over_{contender}"] = median_ratio(seconds, times["baton"])
            target = f", target {TARGETS[contender]}" if contender in TARGETS else ""
            ratio = f"; Baton is {figures[f'{name}_over_{contender}']:.2f} times as fast"
            ratio += f" ({ratios[0]:.2f} to {ratios[-1]:.2f}{target})"
        rows.append((f"  {contender}", f"{speed:,.0f} tokens/s{mfu}{ratio}"))
        figures[f"{name}_{contender}_tokens_per_s"] = speed
        if peak:
            figures[f"{name}_{contender}_mfu"] = speed * per_token / peak
    whole = sum(split[phase] for phase in PHASES)
    shares = {phase: split[phase] / whole for phase in PHASES}
    rows.append(("  baton's step", ", ".join(f"{phase[:-2]} {share:.1%}" for phase, share in shares.items())))
    figures[f"{name}_data_wait"] = shares["data_s"]
    if profiled:
        print(f"{name}: a step of Baton\n{profiled}")


PHASES = ("data_s", "forward_backward_s", "optimizer_s")


def write_data(folder: Path, size: Size) -> None:
    """Write documents of random tokens, for about ten epochs in an endless run."""
    import numpy as np

    from tests.pretrain.tiny import write_shards

    random = np.random.default_rng(0)
    train, held_out = (
        [random.integers(1, size.vocabulary, size=1000) for _ in range(size.tokens * steps // 1000 + 2)]
        for steps in (64, 1)
    )
    write_shards(folder, train, held_out)


# -- contenders, each in a separate process -----------------------------------------------------------


class Turnstile:
    """Stops a contender's process after each step until further steps are requested."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._left, self.profiling = connection.recv()

    def __call__(self, **facts: Any) -> bool:
        """Return whether to run another step. Once the requested steps have run, this reports the facts and waits."""
        self._left -= 1
        if self._left == 0:
            _free_gpu_cache()  # contenders share one GPU: while it waits, each keeps only its weights and optimizer
            self._connection.send(facts)
            self._left, self.profiling = self._connection.recv()
        return bool(self._left)


def _free_gpu_cache() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Remote:
    """A contender, as seen from the benchmark."""

    def __init__(self, name: str, size: Size, folder: Path) -> None:
        self._here, there = multiprocessing.Pipe()
        self._log = folder / f"{name}.log"
        spawn = multiprocessing.get_context("spawn")
        self._process = spawn.Process(target=_contend, args=(name, size, folder, there, self._log), daemon=True)
        self._process.start()
        there.close()
        self.last: dict[str, Any] = {}

    def take(self, steps: int, profiling: bool = False) -> dict[str, Any]:
        """Request steps, and return the facts that the contender reports afterwards."""
        try:
            self._here.send((steps, profiling))
            self.last = self._here.recv()
        except (EOFError, OSError) as error:
            raise SystemExit(f"a contender ended:\n{self._log.read_text()[-3000:]}") from error
        return self.last

    def stop(self) -> None:
        try:
            self._here.send((0, False))
        except OSError:
            pass  # it has already ended
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()


def _contend(name: str, size: Size, folder: Path, connection: Connection, log: Path) -> None:
    with log.open("w") as stream:
        os.dup2(stream.fileno(), sys.stdout.fileno())
        os.dup2(stream.fileno(), sys.stderr.fileno())
    CONTENDERS[name](size, folder, Turnstile(connection))


def baton(size: Size, folder: Path, turnstile: Turnstile) -> None:
    """Run the engine as torchrun starts it, through baton.infra.process.launch."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(SHORT_WAITS | alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
    import torch
    from torch.profiler import profile

    from baton.tasks.core.job import open_job
    from baton.tasks.pretrain.process import distributed
    from baton.tasks.pretrain.trainer import Trainer
    from tests.pretrain.tiny import pretrain_job

    spec = PretrainSpec(
        model=size.model,
        optimizer=OptimizerSpec(lr=1e-3, min_lr=1e-4, warmup_steps=10),
        sequence_length=size.sequence,
        global_batch=size.batch,
        layout=Layout(micro_batch=size.batch),
        steps=ENDLESS,
        validation_sequences=size.batch,
    )
    job = open_job(pretrain_job(folder / "job", folder / "data", spec))
    with distributed(spec.layout, spec.seed):
        trainer = Trainer(job, spec)
        facts: dict[str, Any] = {"parameters": sum(p.numel() for p in trainer.training.chunks[0].parameters())}
        with trainer.prefetch:
            going = True
            while going:
                with profile() if turnstile.profiling else nullcontext() as seen:
                    facts |= trainer.step() or {}
                if seen:
                    by = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
                    facts["profile"] = seen.key_averages().table(sort_by=by, row_limit=25, max_name_column_width=60)
                going = turnstile(**facts)


def _hugging_face(size: Size) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    spec = size.model
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=size.vocabulary,
            hidden_size=spec.hidden,
            intermediate_size=spec.ffn_hidden,
            num_hidden_layers=spec.layers,
            num_attention_heads=spec.heads,
            num_key_value_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            max_position_embeddings=spec.max_positions,
            tie_word_embeddings=spec.tied_embeddings,
            use_cache=False,
        )
    )


def _sequences(size: Size, folder: Path) -> list[dict[str, Any]]:
    import numpy as np
    import torch

    tokens = np.fromfile(folder / "data" / "train.bin", dtype="<u2").astype(np.int64)
    rows = torch.from_numpy(tokens[: len(tokens) // size.sequence * size.sequence].reshape(-1, size.sequence))
    return [{"input_ids": row, "labels": row} for row in rows]


def hf_trainer(size: Size, folder: Path, turnstile: Turnstile, compiled: bool) -> None:
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    model = _hugging_face(size)
    facts = {"parameters": model.num_parameters()}

    class Turns(TrainerCallback):
        def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = not turnstile(**facts)

    arguments = TrainingArguments(
        output_dir=str(folder / f"hf-{compiled}"),
        per_device_train_batch_size=size.batch,
        max_steps=ENDLESS,
        learning_rate=1e-3,
        adam_beta2=0.95,
        weight_decay=0.1,
        warmup_steps=10,
        lr_scheduler_type="cosine",
        bf16=True,
        torch_compile=compiled,
        use_cpu=not torch.cuda.is_available(),
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=_sequences(size, folder), callbacks=[Turns()]).train()


def plain_loop(size: Size, folder: Path, turnstile: Turnstile) -> None:
    import torch
    from torch.utils.data import DataLoader

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = _hugging_face(size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ENDLESS)
    facts: dict[str, Any] = {"parameters": model.num_parameters()}
    while True:
        for batch in DataLoader(_sequences(size, folder), size.batch, shuffle=True, drop_last=True):  # type: ignore[arg-type]
            with torch.autocast(device, torch.bfloat16):
                loss = model(**{name: column.to(device) for name, column in batch.items()}).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if not turnstile(**facts, loss=loss.item()):
                return


CONTENDERS: dict[str, Callable[[Size, Path, Turnstile], None]] = {
    "baton": baton,
    "hf_eager": partial(hf_trainer, compiled=False),
    "hf_compiled": partial(hf_trainer, compiled=True),
    "plain_loop": plain_loop,
}


if __name__ == "__main__":
    main()
