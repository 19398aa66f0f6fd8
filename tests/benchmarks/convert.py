"""`python -m tests.benchmarks.convert [--gigabytes N] [--rounds N] [--folder DISK] [--mbridge FOLDER]`

Compare the converter with `cp` of the same bytes, the lower bound for anything that writes a copy. The model has random
weights in the sizes of Qwen3-4B, and as many layers as `--gigabytes` requires; a smaller model is converted first, to
show whether peak memory grows with the model.

In each round, cp copies the Hugging Face folder, which is then imported; cp copies the Megatron folder, which is then
exported, and the export is the model of the next round. Before each conversion, the files to read are loaded into the
page cache and earlier writes are synced to the disk. Each conversion runs in a separate process. Reported are its
wall-clock time and CPU time, both without the start of Python and the imports, and its peak memory, which includes
them. CPU time is reported because wall-clock time says little on a machine that runs other jobs.

`--mbridge`: a folder with another converter, as `uv pip install --no-deps --target FOLDER mbridge==0.15.1` creates it.
mbridge loads a complete model into memory, and Megatron's dist_checkpointing reads and writes it. mbridge requires a
GPU and Transformer Engine; here it runs on the CPU with Megatron's own layers, on the smaller model.
"""

import argparse
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.harness import report, seconds

SIZES: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 2560,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 9728,
    "tie_word_embeddings": True,
}
SMALL_GB = 1.0
EMBEDDING_GB, LAYER_GB = 0.778, 0.2019
SHARD = 4_000_000_000  # bytes
DRAWN = 1 << 24  # bytes of random numbers that are generated at once


@dataclass(frozen=True)
class Run:
    """The time in seconds and the memory in bytes of one conversion."""

    seconds: float
    processor_seconds: float
    start_seconds: float
    resident: int
    anonymous: int


def write_model(folder: Path, layers: int) -> int:
    """Write random finite bf16 numbers as safetensors, and return their size in bytes."""
    import torch
    from transformers import Qwen3Config

    from baton.tasks.convert.families import family_of, read
    from baton.tasks.convert.mapping import weights
    from baton.tasks.convert.safetensors_files import Shard, write_index

    folder.mkdir()
    config = Qwen3Config(**SIZES, num_hidden_layers=layers, dtype="bfloat16", architectures=["Qwen3ForCausalLM"])
    config.save_pretrained(folder)
    fields = config.to_dict()
    shapes = {name: shape for weight in weights(family_of(fields).table, read(fields)) for name, shape in weight.parts}
    files: dict[str, dict[str, int]] = {}
    random = np.random.default_rng(0)
    for number, names in enumerate(_shards(shapes)):
        file = f"model-{number + 1:05d}.safetensors"
        files[file] = {name: 2 * prod(shapes[name]) for name in names}
        shard = Shard(folder / file, {name: (shapes[name], torch.bfloat16) for name in names})
        for name in names:
            row = 2 * prod(shapes[name][1:])
            height = max(1, DRAWN // row)
            for start in range(0, shapes[name][0], height):
                rows = min(height, shapes[name][0] - start)
                drawn = np.frombuffer(random.bytes(rows * row), np.uint16) & 0xBFFF  # below 2, therefore never infinite
                shard.write(name, start, drawn.view(np.uint8).data)
        shard.close()
    write_index(folder, files)
    return sum(size for sizes in files.values() for size in sizes.values())


def _shards(shapes: dict[str, tuple[int, ...]]) -> Iterator[list[str]]:
    names: list[str] = []
    size = 0
    for name, shape in shapes.items():
        if names and size + 2 * prod(shape) > SHARD:
            yield names
            names, size = [], 0
        names.append(name)
        size += 2 * prod(shape)
    yield names


def convert(step: str, source: Path, target: Path, mbridge: Path) -> None:
    """Convert in a separate process, which prints its seconds."""
    started = time.perf_counter()
    work = (peer if step.startswith("mbridge") else ours)(step, source, target, mbridge)
    start = time.perf_counter() - started
    settle(source)
    before = time.process_time()
    took = seconds(work)
    found = {"seconds": took, "processor_seconds": time.process_time() - before, "start_seconds": start}
    print(json.dumps(found))


def ours(step: str, source: Path, target: Path, _: Path) -> Callable[[], object]:
    from baton.tasks.convert.export_model import ExportOptions, export_model
    from baton.tasks.convert.import_model import ImportOptions, import_model, open_hugging_face
    from baton.tasks.convert.megatron_model import open_megatron

    def no_progress(done: int, total: int) -> None:
        pass

    # imported here too: transformers imports most of its modules only now
    if step == "import":
        open_hugging_face(source)
        return lambda: import_model(open_hugging_face(source), target, ImportOptions(), no_progress)
    open_megatron(source)
    return lambda: export_model(open_megatron(source), target, ExportOptions(), None, no_progress)


def peer(step: str, source: Path, target: Path, mbridge: Path) -> Callable[[], object]:
    sys.path.insert(0, str(mbridge))
    from tests.pretrain.alone import alone

    # isort: split
    # no requirement of this project: it is in the given folder
    Qwen3Bridge: Any = importlib.import_module("mbridge.models.qwen3").Qwen3Bridge
    from megatron.core import dist_checkpointing
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from transformers import AutoConfig

    layer = "model.layers.{layer_number}."

    class OnCpu(Qwen3Bridge):  # type: ignore[misc]
        """A model with Megatron's own layers, in which two norms have other names."""

        _MLP_MAPPING = Qwen3Bridge._MLP_MAPPING | {
            "pre_mlp_layernorm.weight": [layer + "post_attention_layernorm.weight"]
        }
        _OTHER_MAPPING = {"input_layernorm.weight": [layer + "input_layernorm.weight"]}  # noqa: RUF012  mbridge's way
        has_vp_stage = False

        def _get_transformer_layer_spec(self, vp_stage: int | None = None) -> Any:
            return get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm")

        def _get_gptmodel_args(self) -> dict[str, Any]:  # super() uses a field that transformers 5 lacks
            return {
                "vocab_size": self.hf_config.vocab_size,
                "max_sequence_length": self.hf_config.max_position_embeddings,
                "position_embedding_type": "rope",
            }

    def work() -> None:
        bridge = OnCpu(AutoConfig.from_pretrained(source))
        bridge.set_extra_args(use_cpu_initialization=True, perform_initialization=False)
        model = bridge._model_provider([])(pre_process=True, post_process=True)
        if step == "mbridge import":
            bridge.load_weights([model], str(source))
            target.mkdir()
            dist_checkpointing.save({"model": model.sharded_state_dict()}, str(target), ("torch_dist", 1))
            shutil.copyfile(source / "config.json", target / "config.json")
        else:
            loaded = dist_checkpointing.load({"model": model.sharded_state_dict()}, str(source))
            model.load_state_dict(loaded["model"], strict=False)
            bridge.safetensor_io = bridge._get_safetensor_io(str(source))
            bridge.save_weights([model], str(target))

    def in_a_group() -> None:
        with alone():
            work()

    return in_a_group


def run(step: str, source: Path, target: Path, mbridge: Path | None = None) -> Run:
    """Run a conversion in a separate process."""
    command = [sys.executable, "-m", "tests.benchmarks.convert", "--step", step, str(source), str(target)]
    resident = anonymous = 0
    with subprocess.Popen([*command, str(mbridge)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        while (ended := os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
            resident = max(resident, _memory(process.pid, "VmHWM"))
            anonymous = max(anonymous, _memory(process.pid, "RssAnon"))
            time.sleep(0.02)
        lines = process.stdout.read().splitlines()
    if ended.si_status:
        raise SystemExit(f"{step} failed")
    return Run(**json.loads(lines[-1]), resident=resident, anonymous=anonymous)


def _memory(process: int, figure: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(figure)), 0)


def copy(source: Path, target: Path) -> Run:
    """Time cp, and delete the copy."""
    settle(source)
    before = os.times()
    took = seconds(lambda: subprocess.run(["cp", "-r", str(source), str(target)], check=True))
    after = os.times()
    shutil.rmtree(target)
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return Run(took, used, 0.0, 0, 0)


def settle(source: Path) -> None:
    """Sync written files to the disk, and load the files to read into the page cache. A virtual machine returns the
    memory of deleted files to its host, so no contender benefits from memory that the previous one freed."""
    os.sync()
    time.sleep(3)
    block = bytearray(1 << 20)
    for path in source.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as stream:
                while stream.readinto(block):
                    pass


class Rounds:
    """The conversions of a model in both directions, each after a cp."""

    def __init__(self, folder: Path, gigabytes: float, rounds: int, mbridge: Path | None) -> None:
        hugging_face, megatron, copied = folder / "huggingface", folder / "megatron", folder / "copy"
        other_megatron, other = folder / "mbridge-megatron", folder / "mbridge-huggingface"
        self.size = write_model(hugging_face, max(1, round((gigabytes - EMBEDDING_GB) / LAYER_GB)))
        self.copies: dict[str, list[Run]] = {"import": [], "export": []}
        self.runs: dict[str, list[Run]] = {}
        for _ in range(rounds):
            self.copies["import"].append(copy(hugging_face, copied))
            if mbridge:
                self._convert("mbridge import", hugging_face, other_megatron, mbridge)
                self._convert("mbridge export", other_megatron, other, mbridge)
                shutil.rmtree(other_megatron)
                shutil.rmtree(other)
            self._convert("import", hugging_face, megatron)
            shutil.rmtree(hugging_face)
            self.copies["export"].append(copy(megatron, copied))
            self._convert("export", megatron, hugging_face)
            shutil.rmtree(megatron)
        shutil.rmtree(hugging_face)

    def _convert(self, step: str, source: Path, target: Path, mbridge: Path | None = None) -> None:
        self.runs.setdefault(step, []).append(run(step, source, target, mbridge))

    def over_cp(self, step: str) -> list[float]:
        """Return the throughput relative to that of cp, for each round."""
        copies = self.copies[step.removeprefix("mbridge ")]
        return [cp.seconds / found.seconds for cp, found in zip(copies, self.runs[step], strict=True)]

    def middle(self, step: str, figure: str) -> float:
        return float(statistics.median(getattr(found, figure) for found in self.runs[step]))

    def most(self, step: str, figure: str) -> int:
        return int(max(getattr(found, figure) for found in self.runs[step]))

    def rows(self) -> list[tuple[str, str]]:
        gigabytes = self.size / 1e9
        rows = [("model", f"{gigabytes:.2f} GB, {len(self.copies['import'])} rounds")]
        cps = self.copies["import"] + self.copies["export"]
        took, used = (
            statistics.median(getattr(cp, figure) for cp in cps) for figure in ("seconds", "processor_seconds")
        )
        rows.append(("  cp", f"{gigabytes / took:.2f} GB/s, processors {used / gigabytes:.2f} s/GB"))
        for step in self.runs:
            ratios = self.over_cp(step)
            rows.append((
                f"  {step}",
                f"{gigabytes / self.middle(step, 'seconds'):.2f} GB/s, processors "
                f"{self.middle(step, 'processor_seconds') / gigabytes:.2f} s/GB, throughput / cp's "
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), peak memory "
                f"{self.most(step, 'resident') / 1e9:.2f} GB, anonymous {self.most(step, 'anonymous') / 1e9:.2f} GB",
            ))  # fmt: skip
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, help="a disk with room for three times the model; default: that of temporary files"
    )
    parser.add_argument("--mbridge", type=Path)
    parser.add_argument("--step", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        step, *folders = arguments.step
        convert(step, *map(Path, folders))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="baton-") as folder:
        compare(Path(folder), arguments.gigabytes, arguments.rounds, arguments.mbridge)


def compare(folder: Path, gigabytes: float, rounds: int, mbridge: Path | None) -> None:
    small = Rounds(folder, SMALL_GB, rounds, mbridge)
    large = Rounds(folder, gigabytes, rounds, None)
    rows = small.rows() + large.rows()
    rows.append(("targets", "throughput / cp's at least 0.70; peak memory at most 1 GB + the largest tensor, 0.78 GB, "
                            "and the same for both models"))  # fmt: skip
    figures: dict[str, float] = {}
    for step in ("import", "export"):
        peak = large.most(step, "resident")
        figures |= {
            f"{step}_over_cp": statistics.median(large.over_cp(step)),
            f"{step}_gb_per_s": large.size / 1e9 / large.middle(step, "seconds"),
            f"{step}_processor_s_per_gb": large.middle(step, "processor_seconds") / (large.size / 1e9),
            f"{step}_peak_gb": peak / 1e9,
            f"{step}_peak_growth_gb": (peak - small.most(step, "resident")) / 1e9,
        }
        if mbridge:
            other = f"mbridge {step}"
            figures[f"{step}_mbridge_over_ours"] = statistics.median(
                theirs.seconds / ours.seconds for theirs, ours in zip(small.runs[other], small.runs[step], strict=True)
            )
            figures[f"{step}_mbridge_peak_gb"] = small.most(other, "resident") / 1e9
    report("convert", rows, figures)


if __name__ == "__main__":
    main()
