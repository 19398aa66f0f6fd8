"""How long a training stands still for a checkpoint: `python -m tests.benchmarks.checkpoint`.

A model of 25 M parameters in bf16 (14 bytes of state each) in one process. Compared, round by round:
Megatron's own synchronous save; ours, synchronous; ours in the background. What a background save costs
is more than the time in which the step stands still: the steps that follow share the machine with the
writer. So it is also told how much longer STEPS steps take with a save in their midst.
"""

import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.harness import report, seconds
from tests.pretrain.tiny import VOCABULARY, make_shards

ROUNDS, STEPS = 5, 12


def main(folder: Path) -> None:
    # Megatron's save starts a process that imports this module again
    from tasks.models.model_spec import ModelSpec
    from tasks.pretrain.batches import build_datasets, micro_batches
    from tasks.pretrain.checkpoint import Checkpoints, TrainingState
    from tasks.pretrain.layout import Layout
    from tasks.pretrain.spec import CheckpointPolicy, PretrainSpec
    from tasks.pretrain.train_step import Training
    from tests.pretrain.alone import alone

    # isort: split
    from megatron.core import dist_checkpointing

    model = ModelSpec(layers=6, hidden=512, heads=8, kv_heads=8, head_dim=64, ffn_hidden=1792, vocab_size=8192)
    spec = PretrainSpec(model=model, sequence_length=128, global_batch=4, layout=Layout(micro_batch=4))
    spec = spec.resolved(8192, continued=False)
    with alone():
        dataset, _ = build_datasets(spec, [make_shards(folder / "shards")], VOCABULARY, folder / "index")
        training = Training(spec, 8192)
        state = TrainingState(training.chunks, training.optimizer, training.scheduler)
        checkpoints = Checkpoints(folder / "checkpoints", CheckpointPolicy(keep_last=1))
        batches = micro_batches(dataset, 0, 4, 4)

        def step() -> None:
            training.gradients(batches)
            training.update(training.gradient_norm())
            state.step += 1
            checkpoints.poll()

        def steps() -> None:
            for _ in range(STEPS):
                step()

        def megatron() -> None:
            path = folder / "megatron"
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
            chunk = training.chunks[0].sharded_state_dict()
            optimizer = training.optimizer.sharded_state_dict(chunk)
            dist_checkpointing.save({"model": chunk, "optimizer": optimizer}, str(path), ("torch_dist", 1))

        def synchronous() -> None:
            checkpoints.save(state)
            checkpoints.finish()

        step()
        first = {"Megatron": seconds(megatron), "ours": seconds(synchronous)}
        stalls: list[float] = []

        def asynchronous() -> None:
            stalls.append(seconds(lambda: checkpoints.save(state)))
            steps()
            checkpoints.finish()

        times: dict[str, list[float]] = {}
        contenders: dict[str, Callable[[], None]] = {
            "megatron": megatron, "synchronous": synchronous, "steps": steps, "asynchronous": asynchronous,
        }  # fmt: skip
        for _ in range(ROUNDS):
            for name, work in contenders.items():
                times.setdefault(name, []).append(seconds(work))
        size = sum(path.stat().st_size for path in checkpoints.complete()[-1].iterdir())

    middle = {name: statistics.median(found) for name, found in times.items()}
    stall = statistics.median(stalls)
    slower = middle["asynchronous"] - middle["steps"]
    rows = [
        ("checkpoint", f"{size / 1e6:.0f} MB"),
        ("a step", f"{middle['steps'] / STEPS * 1e3:.0f} ms"),
        ("Megatron's save", f"{middle['megatron']:.2f} s, the first one of a process {first['Megatron']:.2f} s"),
        ("ours, synchronous", f"{middle['synchronous']:.2f} s, the first one {first['ours']:.2f} s"),
        ("ours, in the background", f"{stall * 1e3:.0f} ms, and {STEPS} steps take {slower:.2f} s longer"),
    ]
    figures = {
        "stall_over_megatron": stall / middle["megatron"],
        "synchronous_over_megatron": middle["synchronous"] / middle["megatron"],
        "stall_ms": stall * 1e3,
        "megatron_s": middle["megatron"],
        "megatron_first_s": first["Megatron"],
        "background_costs_s": slower,
    }
    report("checkpoint", rows, figures)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
