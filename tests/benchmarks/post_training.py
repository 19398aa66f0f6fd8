"""`python -m tests.benchmarks.post_training [--rounds N] [--only sft|grpo|rows]`

Compare Baton's SFT and GRPO engines with TRL's trainers under TRL's defaults: the same model (Qwen3's architecture, 5.8
M parameters), rows, sequences per optimizer step and learning rate, in separate processes that run one after the other.
SFT is compared by trained tokens per second without padding, GRPO by the seconds of a step. The start, loading and the
first two steps are not counted; both use the same number of threads. On a CPU, TRL samples with Transformers, since its
vLLM mode does not run there.

Compare the tokenization of chat rows, which precedes the steps on every rank, with Transformers' `apply_chat_template`
with the mask of the assistant's tokens, row by row: rows per second and per CPU second, and the share of the CPU time
that runs on one core only, regardless of the number of cores.
"""

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "true"  # the setting of the engines

from tests.benchmarks.harness import report
from tests.benchmarks.tokenize import write_inputs
from tests.posttrain.tiny import environment, metrics, tiny_model, tiny_rows, write_job

STEPS = {"sft": 12, "grpo": 7}
SKIPPED = 2  # first steps, which are not counted
SEQUENCES = {"sft": 32, "grpo": 64}  # sequences of a step
GENERATIONS = 8
PROMPT, NEW = 256, 64  # maximum numbers of tokens
ROWS = 4_000
TARGETS = {"sft": 1.3, "grpo": 1.5}
MODULES = ("argparse", "ast", "asyncio.base_events", "configparser", "decimal", "inspect", "pathlib", "typing")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=[*STEPS, "rows"])
    parser.add_argument(
        "--plain", nargs=2, metavar=("STAGE", "FOLDER"), help="run TRL's trainer alone (used by itself)"
    )
    options = parser.parse_args()
    if options.plain:
        PLAIN[options.plain[0]](Path(options.plain[1]))
        return
    table: list[tuple[str, str]] = []
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        model, rows = benchmark_model(root / "model"), tiny_rows(root / "rows", functions(), "prompt_completion")
        if options.only in (None, "rows"):
            table, figures = encoding(root / "encoding", options.rounds)
        for stage in [name for name in STEPS if options.only in (None, name)]:
            speeds: dict[str, list[float]] = {"baton": [], "trl": []}
            for number in range(options.rounds):
                for name in speeds if number % 2 == 0 else reversed(speeds):
                    job = root / f"{stage}-{name}-{number}"
                    speeds[name].append(RUN[name](job, stage, model, rows))
            ratios = sorted(a / b for a, b in zip(speeds["baton"], speeds["trl"], strict=True))
            ratio = statistics.median(ratios)
            unit = "trained tokens/s" if stage == "sft" else "steps/s"
            shown = ", ".join(f"{name} {statistics.median(found):.4g}" for name, found in speeds.items())
            target = f"target: at least {TARGETS[stage]}"
            table.append(
                (stage, f"{ratio:.2f} times TRL ({ratios[0]:.2f} to {ratios[-1]:.2f}; {target}); {unit}: {shown}")
            )
            figures[f"{stage}_over_trl"] = ratio
    report("post_training", table, figures)


def benchmark_model(directory: Path) -> Path:
    """A random Qwen3 with 5.8 M parameters and the tokenizer of the tests' model."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from baton.tasks.core.manifest import read_manifest, write_manifest

    tiny_model(directory)
    torch.manual_seed(0)
    small = Qwen3Config.from_pretrained(directory)
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 4}
    heads = {"num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 1024, "layer_types": None}
    model = Qwen3ForCausalLM(Qwen3Config(**small.to_dict() | sizes | heads)).to(torch.bfloat16)
    model.save_pretrained(directory)
    facts = read_manifest(directory).facts
    write_manifest(directory, "hf_model", facts | {"parameters": model.num_parameters(), "max_positions": 1024})
    return directory


def functions() -> list[dict[str, str]]:
    """Return functions of the standard library, with the first half as the prompt. Their lengths vary like those of
    texts."""
    library, found = Path(sysconfig.get_path("stdlib")), []
    for name in MODULES:
        lines = (library / f"{name.replace('.', '/')}.py").read_text().splitlines(keepends=True)
        starts = [number for number, line in enumerate(lines) if line.lstrip().startswith("def ")]
        for begin in starts:
            block = inspect.getblock(lines[begin:])[:24]
            half = max(1, len(block) // 2)
            if block[half:]:
                found.append({"prompt": "".join(block[:half]), "completion": "".join(block[half:])})
    return found


def length(completions: list[str], **columns: object) -> list[float]:
    """A reward that takes almost no time."""
    return [float(len(completion) % 7) for completion in completions]


# -- rows ---------------------------------------------------------------------------------------------------------


def encoding(root: Path, rounds: int) -> tuple[list[tuple[str, str]], dict[str, float]]:
    """Return the table and the figures of tokenizing chat rows: functions of the standard library, four in a row."""
    from baton.tasks.models.tokenizers import load
    from baton.tasks.posttrain.chat import chat_of
    from baton.tasks.posttrain.encode import RowEncoder

    tokenizer = load(chat_tokenizer(root))
    parts = cycle(functions())
    rows = [{"messages": [turn for part in islice(parts, 4) for turn in turns(part)]} for _ in range(ROWS)]
    characters = sum(len(turn["content"]) for row in rows for turn in row["messages"])
    template = chat_of(tokenizer).marked

    def library() -> None:
        for row in rows:
            tokenizer.apply_chat_template(
                row["messages"], chat_template=template, return_dict=True, return_assistant_tokens_mask=True
            )

    def baton() -> None:
        encoder = RowEncoder(tokenizer)
        for row in encoder.ahead(iter(rows)):
            encoder.learned(row, "assistant")

    contenders = {"baton": baton, "library": library}
    used: dict[str, list[tuple[float, ...]]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name in contenders if number % 2 == 0 else reversed(contenders):
            before = (time.perf_counter(), time.process_time(), time.thread_time())
            contenders[name]()
            after = (time.perf_counter(), time.process_time(), time.thread_time())
            used[name].append(tuple(end - start for start, end in zip(before, after, strict=True)))
    clock, cpu, alone = (
        {name: statistics.median(run[which] for run in used[name]) for name in used} for which in range(3)
    )
    ratio, by_cpu = clock["library"] / clock["baton"], cpu["library"] / cpu["baton"]
    shown = ", ".join(f"{name} {ROWS / cpu[name]:.0f} rows by CPU-second, {ROWS / clock[name]:.0f}/s" for name in used)
    return [
        ("chat rows", f"{ROWS} of {characters / ROWS:.0f} characters; {shown}"),
        ("tokenized ahead / row by row", f"{ratio:.2f} by the clock, {by_cpu:.2f} by CPU-second"),
        ("of the CPU time, one core alone", f"{alone['baton'] / cpu['baton']:.0%}"),
    ], {"rows_over_library": ratio, "rows_over_library_by_cpu": by_cpu, "rows_serial": alone["baton"] / cpu["baton"]}


def turns(part: dict[str, str]) -> list[dict[str, str]]:
    return [{"role": "user", "content": part["prompt"]}, {"role": "assistant", "content": part["completion"]}]


def chat_tokenizer(root: Path) -> Path:
    """Create the tokenizer of tokenize.py with the tokens of ChatML."""
    from tokenizers import Tokenizer

    root.mkdir()
    write_inputs(root, 4.0)
    folder = root / "tokenizer"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return folder


# -- Baton --------------------------------------------------------------------------------------------------------


def run_baton(job: Path, stage: str, model: Path, rows: Path) -> float:
    """Return the engine's speed: tokens per second for SFT, steps per second for GRPO."""
    from baton.tasks.rewards.spec import RewardSpec

    spec: dict[str, Any] = {
        "data": "functions",
        "steps": STEPS[stage],
        "batch_size": SEQUENCES[stage],
        "warmup_steps": 0,
    }
    spec |= {"max_prompt_tokens": PROMPT, "max_new_tokens": NEW, "checkpoint_every": 1000, "learning_rate": 1e-5}
    if stage == "grpo":
        reward = job.with_name("length.py")
        reward.write_text(inspect.getsource(length))
        function = RewardSpec.model_validate({"function": f"{reward}:length"}).pinned()
        spec |= {"generations": GENERATIONS, "beta": 0.0, "rewards": [function.model_dump(mode="json")]}
    write_job(job, stage, spec, model=model, rows=rows)
    run(job, "baton.tasks.posttrain.engine", str(job))
    return speed([line for line in metrics(job) if line["step"]], stage)


def run(job: Path, *words: str) -> None:
    """Run `python -m words` with the number of threads that both contenders have."""
    with (job / "log.txt").open("w") as log:
        subprocess.run([sys.executable, "-m", *words], check=True, stdout=log, stderr=log, env=environment())


def speed(lines: list[dict[str, float]], stage: str) -> float:
    first, last = lines[SKIPPED - 1], lines[-1]
    done = last["tokens"] - first["tokens"] if stage == "sft" else last["step"] - first["step"]
    return float(done / (last["time"] - first["time"]))


# -- TRL ----------------------------------------------------------------------------------------------------------


def run_trl(job: Path, stage: str, model: Path, rows: Path) -> float:
    job.mkdir()
    (job / "about.json").write_text(json.dumps({"model": str(model), "rows": str(rows / "train.jsonl")}))
    run(job, "tests.benchmarks.post_training", "--plain", stage, str(job))
    return speed([json.loads(line) for line in (job / "steps.jsonl").read_text().splitlines()], stage)


def plain_sft(job: Path) -> None:
    from trl import SFTConfig, SFTTrainer

    def fits(row: dict[str, str]) -> bool:
        return len(tokenizer(row["prompt"]).input_ids) <= PROMPT and len(tokenizer(row["completion"]).input_ids) < NEW

    model, rows, tokenizer = loaded(job)
    arguments = SFTConfig(**common(job, "sft"), include_num_input_tokens_seen="non_padding")
    trained(SFTTrainer(model, arguments, train_dataset=rows.filter(fits), processing_class=tokenizer), job)


def plain_grpo(job: Path) -> None:
    from trl import GRPOConfig, GRPOTrainer

    model, rows, tokenizer = loaded(job)
    rows = rows.filter(lambda row: len(tokenizer(row["prompt"]).input_ids) <= PROMPT)
    arguments = GRPOConfig(**common(job, "grpo"), num_generations=GENERATIONS, max_completion_length=NEW)
    trained(GRPOTrainer(model, length, arguments, train_dataset=rows, processing_class=tokenizer), job)


def loaded(job: Path) -> tuple[Any, Any, Any]:
    import datasets
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    about = json.loads((job / "about.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(about["model"], dtype=torch.float32)
    return model, datasets.Dataset.from_json(about["rows"]), AutoTokenizer.from_pretrained(about["model"])


def common(job: Path, stage: str) -> dict[str, Any]:
    """Return TRL's defaults, except for the settings that both must share: the sequences per step, the number of steps,
    the learning rate."""
    return {
        "output_dir": str(job / "output"),
        "max_steps": STEPS[stage],
        "gradient_accumulation_steps": SEQUENCES[stage] // 8,  # a micro batch of 8, TRL's default
        "learning_rate": 1e-5,
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "dataloader_pin_memory": False,
    }


def trained(trainer: Any, job: Path) -> None:
    """Train, and write the time of each step to steps.jsonl."""
    from transformers import TrainerCallback

    class Times(TrainerCallback):  # type: ignore[misc] # transformers has no types
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
            if "loss" in logs:
                line = {"step": state.global_step, "time": time.time(), "tokens": state.num_input_tokens_seen}
                with (job / "steps.jsonl").open("a") as lines:
                    lines.write(json.dumps(line) + "\n")

    trainer.add_callback(Times())
    trainer.train()


PLAIN: dict[str, Callable[[Path], None]] = {"sft": plain_sft, "grpo": plain_grpo}
RUN: dict[str, Callable[[Path, str, Path, Path], float]] = {"baton": run_baton, "trl": run_trl}

if __name__ == "__main__":
    main()
