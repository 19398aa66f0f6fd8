"""All artifacts of a run, sealed by the real functions, with plausible contents and without training.

`python -m tests.report.example DIR` writes a run with its report for viewing.
"""

import json
import math
import random
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from baton.infra.tracking.spool import FINISHED, Execution, StageRun, execution_folder, write_execution, write_stage
from baton.tasks.artifacts import Artifact
from baton.tasks.convert.artifact import ConversionAudit
from baton.tasks.core.job import Job
from baton.tasks.core.manifest import read_manifest, write_manifest
from baton.tasks.core.seeds import without_seed
from baton.tasks.data.artifact import Corpus, TokenizedCorpus, Tokenizer
from baton.tasks.evaluate.artifact import EvalReport
from baton.tasks.models.artifact import HFModel
from baton.tasks.pretrain.artifact import MegatronCheckpoint
from baton.tasks.publish.artifact import PublishedModel
from baton.tasks.report.report import work
from baton.tasks.serve.artifact import Endpoint
from tests.promote.made import metric

STEPS = 600
RATES = {  # right, brief, distinct, bits per byte
    "base": (0.312, 0.47, 0.83, 2.412),
    "sft": (0.428, 0.66, 0.81, 2.431),
    "dpo": (0.491, 0.73, 0.78, 2.455),
    "grpo": (0.784, 0.93, 0.64, 2.498),
}
PROMPT = "What is 17 + 4? ("
WRITTEN = {"base": "I do not know.", "sft": "About twenty.", "dpo": "It is 22.", "grpo": "It is 21."}
TIMES = {  # durations in seconds
    "corpus": 0.0, "tokenizer": 2.6, "shards": 4.2, "pretrain": 214.8, "convert": 2.1, "audit": 7.0,
    "evaluate base": 24.3, "sft": 61.0, "evaluate sft": 24.9, "dpo": 48.2, "evaluate dpo": 23.7, "grpo": 121.5,
    "evaluate grpo": 24.4, "publish": 3.3,
}  # fmt: skip
SPIKE = {"step": 310, "why": "loss 7.2104", "reaction": "roll_back", "first": 4944, "count": 16}


def seal(
    directory: Path,
    made: type[Artifact],
    facts: Mapping[str, Any],
    parents: Mapping[str, Path] | None = None,
    *,
    files: Mapping[str, str] | None = None,
    record: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> Path:
    """Write one artifact as an engine does."""
    directory.mkdir(parents=True)
    written = {"content.txt": directory.name} | dict(files or {})
    written |= {f"record/{name}": text for name, text in (record or {}).items()}
    for name, text in written.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    digests = {name: made_of(path) for name, path in (parents or {}).items()}
    write_manifest(directory, made.kind, dict(facts), dict(spec or {}), digests)
    made.from_directory(directory)  # checks that the facts are those of the artifact's class
    return directory


def made_of(directory: Path) -> str:
    return str(json.loads((directory / "manifest.json").read_text())["digest"])


def lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def example_run(root: Path, rates: Mapping[str, tuple[float, ...]] = RATES) -> dict[str, Path]:
    """Write every artifact of pretrain_to_rl, and return them by their names in the run."""
    made: dict[str, Path] = {}
    made["corpus"] = seal(
        root / "corpus", Corpus,
        {"documents": 571, "held_out_documents": 30, "bytes": 10_512_332, "held_out_bytes": 551_020,
         "duplicates": 14, "empty": 23, "invalid_utf8": 1},
        spec={"source": {"kind": "stdlib"}, "held_out": 0.05},
        record={"samples.json": json.dumps([{"source": "shapes.py", "text": "import math\n"}])},
    )  # fmt: skip
    made["tokenizer"] = seal(
        root / "tokenizer", Tokenizer, {"vocab_size": 4096, "eos_id": 0, "pad_id": 1}, {"corpus": made["corpus"]},
        spec={"vocab_size": 4096},
        record={"sample.json": json.dumps({"bytes_per_token": 3.31, "pieces": ["def", " are", "a", "(", "):", "\n"]})},
    )  # fmt: skip
    made["shards"] = seal(
        root / "shards", TokenizedCorpus,
        {"tokens": 3_001_244, "held_out_tokens": 157_203, "held_out_bytes": 551_020, "vocab_size": 4096,
         "eos_id": 0, "tokenizer_digest": made_of(made["tokenizer"])},
        {"corpus": made["corpus"], "tokenizer": made["tokenizer"]},
        record={"encoder.json": json.dumps({"text": "Encoded by gigatoken."})},
    )  # fmt: skip
    made["pretrain"] = seal(
        root / "pretrain", MegatronCheckpoint,
        {"step": STEPS, "tokens_seen": STEPS * 16 * 256, "parameters": 5_769_472, "vocab_size": 4096,
         "sequence_length": 256, "precision": "bf16", "layout": {"tensor": 1, "pipeline": 1}, "validation_loss": 2.31,
         "tokenizer_digest": made_of(made["tokenizer"])},
        {"data": made["shards"]}, record={"metrics.jsonl": lines(pretraining()), "anomalies.jsonl": lines([SPIKE])},
        spec={"steps": STEPS, "model": {"hidden": 256, "layers": 6}},
    )  # fmt: skip
    made["base"] = model(root, "base", {"checkpoint": made["pretrain"], "tokenizer": made["tokenizer"]}, {})
    made["audit"] = seal(
        root / "audit", ConversionAudit,
        {"tensors": 18, "parameters": 5_769_472, "tokens": 2048, "logits_max_abs_diff": 5.7e-6,
         "argmax_agreement": 1.0},
        {"checkpoint": made["pretrain"], "model": made["base"], "data": made["shards"]},
        files={"audit.json": json.dumps(audit())},
    )  # fmt: skip
    for before, label in (("base", "sft"), ("sft", "dpo"), ("dpo", "grpo")):
        parents = {"model": made[before], "corpus": made["corpus"]}
        made[label] = model(root, label, parents, {"metrics.jsonl": lines(tuning(label))})
    made["published"] = seal(
        root / "published", PublishedModel, {"label": "grpo", "registry_name": "baton-laptop", "registry_version": "1",
                                             "why": "grpo is the run's last model"},
        {"model": made["grpo"]}, files={"README.md": "# baton-laptop\n\nA model card.\n"},
    )  # fmt: skip
    made["endpoint"] = seal(
        root / "endpoint", Endpoint,
        {"label": "grpo", "model_digest": made_of(made["grpo"]), "requests_per_s": 41.5, "tokens_per_s": 2656.0,
         "first_token_ms": 12.5},
        {"model": made["grpo"]}, files={"endpoint.json": json.dumps(served())}, spec={"max_num_seqs": 256},
    )  # fmt: skip
    for label in ("base", "sft", "dpo", "grpo"):
        made[f"eval_{label}"] = evaluation(root, label, made[label], made["corpus"], rates[label])
    return made


def model(root: Path, label: str, parents: Mapping[str, Path], record: Mapping[str, str]) -> Path:
    facts = {
        "label": label, "architecture": "Qwen3ForCausalLM", "parameters": 5_769_472, "vocab_size": 4096,
        "max_positions": 512, "dtype": "bfloat16",
    }  # fmt: skip
    return seal(root / label, HFModel, facts, parents, record=record)


def evaluation(root: Path, label: str, of: Path, corpus: Path, rates: tuple[float, ...], prompts: int = 64) -> Path:
    """Write an evaluation whose items agree with its metrics."""
    right, brief, distinct, bits = rates
    metrics = {
        "bits_per_byte": metric(bits, "bits per byte", higher_is_better=False),
        "sums.right": metric(right, "share"),
        "sums.brief": metric(brief, error=0.03),
        "sums.distinct": metric(distinct, "share", error=None),
    }
    measured = {"bits_per_byte": "8 held-out documents of corpus 5eed (8.0 kB)", "sums": "64 rows of data.sums 0dd5"}
    facts = {"label": label, "model_digest": made_of(of), "metrics": metrics, "headline": "sums.right"}
    facts |= {"measured": measured}
    told = {
        "ceiling": {"sums.right": 1.0, "sums.brief": 0.81, "sums.distinct": 0.98},
        "sets": {"corpus": {"documents": 8, "bytes": 8000, "tokens": 3000, "bits_per_byte": bits}},
        "spec": {"seed": 0},
    }
    completions = (completion(label, index, index < right * prompts, brief) for index in range(prompts))
    files = {
        "report.json": json.dumps(facts | told),
        "completions.jsonl": lines(completions),
        "documents.jsonl": lines(
            {"set": "corpus", "id": f"{index:064x}", "bytes": 1000, "bits": 1000 * (bits + (index - 3.5) / 10)}
            for index in range(8)
        ),
    }
    return seal(root / f"eval_{label}", EvalReport, facts, {"model": of, "corpora.0": corpus}, files=files)


def completion(label: str, index: int, right: bool, brief: float) -> dict[str, Any]:
    return {
        "evaluator": "sums",
        "id": f"{index:064x}",
        "prompt": f"{PROMPT}{index})",
        "reference": "21",
        "completion": WRITTEN[without_seed(label)],
        "ended": True,
        "rewards": {"right": float(right), "brief": brief},
    }


def served(failed: int = 0) -> dict[str, Any]:
    """Write endpoint.json as the engine does."""
    levels = [
        {"concurrency": clients, "requests": 32, "failed": failed, "errors": ["Timeout"] * bool(failed), "seconds": 2.0,
         "requests_per_s": 10.0 + clients, "tokens_per_s": 640.0 + 64 * clients,
         **{name: {"p50": 12.5 * clients, "p95": 20.0 * clients, "p99": 25.0 * clients}
            for name in ("first_token_ms", "inter_token_ms", "whole_ms")}}
        for clients in (1, 4, 16)
    ]  # fmt: skip
    return {
        "model_digest": "ab" * 32, "name": "grpo", "engine": "vllm", "arguments": ["--dtype", "auto"],
        "started_s": 18.4, "completion": " f(x):", "chat": None, "levels": levels,
    }  # fmt: skip


def audit() -> dict[str, Any]:
    parts = [
        {"name": f"model.layers.{{}}.self_attn.{letter}_proj.weight", "shape": [256, 256], "dtype": "bfloat16",
         "digest": "f00d" * 16}
        for letter in "qkv"
    ]  # fmt: skip
    weights = [
        {"megatron": f"decoder.layers.self_attention.linear_qkv.weight[{layer}]", "shape": [768, 256],
         "dtype": "bfloat16", "digest": "beef" * 16,
         "parts": [part | {"name": str(part["name"]).format(layer)} for part in parts]}
        for layer in range(6)
    ]  # fmt: skip
    return {
        "parameters": 5_769_472, "weights": weights, "padding_rows": 0, "dropped": [], "config_differences": [],
        "weight_differences": [], "tokens": 2048, "layer_max_abs_diff": [1.2e-6] * 6, "logits_max_abs_diff": 5.7e-6,
        "logits_mean_abs_diff": 4.1e-7, "argmax_agreement": 1.0, "bound": 1e-4,
    }  # fmt: skip


def pretraining() -> Iterable[dict[str, float]]:
    chance = random.Random(1)
    for step in range(1, STEPS + 1):
        loss = 2.2 + 6.1 * math.exp(-step / 90) + chance.gauss(0, 0.06)
        row = {
            "step": step, "time": 1000.0 + step * 0.4, "loss": loss,
            "grad_norm": 0.4 + 2 * math.exp(-step / 50) + abs(chance.gauss(0, 0.1)), "lr": 1e-3 * min(1, step / 60),
            "tokens_per_s": 7600 + chance.gauss(0, 150), "mfu": 0.31 + chance.gauss(0, 0.01),
        }  # fmt: skip
        yield row | ({"validation_loss": loss + 0.1} if step % 100 == 0 else {})


def tuning(label: str) -> Iterable[dict[str, float]]:
    chance = random.Random(2)
    for step in range(1, 61):
        rise = 1 - math.exp(-step / 25)
        common = {"step": step, "time": 2000.0 + step, "loss": 1.6 - rise + chance.gauss(0, 0.05)}
        if label == "dpo":
            yield common | {"preference_accuracy": 0.5 + 0.4 * rise, "margin": 2 * rise + chance.gauss(0, 0.1)}
        elif label == "grpo":
            yield common | {
                "reward": 0.4 + 0.5 * rise + chance.gauss(0, 0.03), "reward_std": 0.3 - 0.1 * rise, "kl": 0.05 * rise,
                "right": 0.4 + 0.35 * rise,
                "distinct": 0.8 - 0.15 * rise, "rollout_mismatch": 1.01 + abs(chance.gauss(0, 0.005)),
                "entropy": 2 - rise, "completion_length": 14 + chance.gauss(0, 1),
                "brief": 0.7 + 0.25 * rise,
            }  # fmt: skip
        else:
            yield common


def example_execution(name: str = "20261121-033000-abcdef") -> str:
    """Write the spool of an execution in BATON_HOME, as tracking leaves it when the report is made."""
    folder = execution_folder(name)
    start = 1_795_231_800.0
    write_execution(folder, Execution(name, "pretrain_to_rl", {}, {"commit": "1f" * 20, "dirty": "true"}, "", start))
    for title, seconds in TIMES.items():
        run = StageRun(title, {}, {}, None, {}, {}, start, start + seconds, FINISHED, cached=title == "corpus")
        write_stage(folder / title.replace(" ", "-"), run)
        start += seconds + 0.3
    write_stage(folder / "report", StageRun("report", {}, {}, None, {}, {}, start))  # still running
    return name


def make_report(job_dir: Path, inputs: Mapping[str, Path], **spec: str) -> Path:
    """Run the engine's work on artifacts, and return the output directory."""
    job_dir.mkdir(parents=True, exist_ok=True)
    entries: dict[str, dict[str, str]] = {}
    for name, path in inputs.items():
        group = {"hf_model": "models", "eval_report": "reports"}.get(read_manifest(path).kind, "parts")
        key = name if group == "parts" else str(len([each for each in entries if each.startswith(group)]))
        entries[f"{group}.{key}"] = {"path": str(path), "digest": made_of(path)}
    job = Job(job_dir, "report", "report", {"title": "A run", "execution": ""} | spec, entries)
    work(job)
    return job.output


if __name__ == "__main__":
    where = Path(sys.argv[1])
    print(make_report(where / "job", example_run(where), execution=example_execution()))
