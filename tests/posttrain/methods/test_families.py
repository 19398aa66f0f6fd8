"""Model families of users in every stage that tunes and samples, with the real engines."""

from pathlib import Path
from typing import Any

import pytest

from baton.tasks.core.manifest import verify
from baton.tasks.evaluate.results import read_results
from baton.tasks.models.agreement import read_probe
from tests.posttrain.methods.families import FAMILIES, tiny_family
from tests.posttrain.tiny import metrics, repeated_words, reward, start, tiny_rows, write_job

MODULES = {
    "load_hf": "baton.tasks.convert.load_hf",
    "sft": "baton.tasks.posttrain.engine",
    "grpo": "baton.tasks.posttrain.engine",
    "evaluate": "baton.tasks.evaluate.evaluate",
}
SFT = {"data": "twice", "steps": 20, "batch_size": 8, "learning_rate": 0.001, "max_new_tokens": 16}
GRPO = {
    "data": "twice",
    "steps": 2,
    "batch_size": 8,
    "generations": 4,
    "warmup_steps": 1,
    "learning_rate": 0.003,
    "max_new_tokens": 8,
    "check_weights_every": 1,
}


@pytest.mark.long
@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_a_family_is_taken_over_tuned_and_evaluated(family: str, tmp_path: Path) -> None:
    said = repeated_words()
    rows = tiny_rows(tmp_path / "rows", said[8:], "prompt_completion", held_out=said[:8])
    rewards = {"rewards": [reward(tmp_path)]}
    run(load := tmp_path / "load_hf", {"model": str(tiny_family(tmp_path / "model", family))})
    run(sft := tmp_path / "sft", SFT, model=load / "output", rows=rows)
    log = run(grpo := tmp_path / "grpo", GRPO | rewards, model=sft / "output", rows=rows)
    assert log.count("vLLM holds the trainer's weights") == 2
    assert all(line.get("rollout_mismatch", 1) < 1.05 for line in metrics(grpo))
    assert all(read_probe(job / "output") for job in (load, sft, grpo))
    spec = {"bits_per_byte": None, "words": {"data": "twice", "max_new_tokens": 8} | rewards}
    run(evaluated := tmp_path / "evaluate", spec, model=grpo / "output", **{"rows.0": rows})
    assert read_results(evaluated / "output").metrics


def run(job: Path, spec: dict[str, Any], **inputs: Path) -> str:
    """Run the stage that `job` is named after, and return its log."""
    write_job(job, job.name, spec, **inputs)
    code = start(MODULES[job.name], job).wait()
    log = (job / "log.txt").read_text()
    assert code == 0, log[-4000:]
    verify(job / "output")
    return log
