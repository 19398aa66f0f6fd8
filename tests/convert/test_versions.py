"""Continue a run with another version of Megatron-Core: the CPU list's after the GPU list's, and vice versa.

BATON_OTHER_PYTHON names an interpreter that has the other list installed:

    BATON_OTHER_PYTHON=…/bin/python python -m pytest -m long tests/convert/test_versions.py
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from baton.tasks.core.manifest import read_manifest, verify
from baton.tasks.models.model_spec import ExpertsSpec, ModelSpec
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.spec import CheckpointPolicy
from tests.convert.test_export import audit_job, export_job
from tests.convert.tiny import make_tokenizer
from tests.pretrain.killing import again_in, copy
from tests.pretrain.tiny import MODEL, VOCABULARY, make_shards, metrics, pretrain_job, tiny_spec

STEPS = 40
OTHER = os.environ.get("BATON_OTHER_PYTHON", "")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not OTHER, reason="BATON_OTHER_PYTHON names no interpreter with the other list"),
]


@dataclass(frozen=True)
class Environment:
    python: str

    def run(self, module: str, job: Path, processes: int = 1, **variables: str) -> int:
        """Run an engine on the CPU, since the test compares versions, not devices. Returns its exit code."""
        command = [self.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""} | variables
        with (job / "log.txt").open("ab") as log:
            completed = subprocess.run(
                [*command, "-m", module, str(job)], stdout=log, stderr=log, env=environment, check=False, timeout=600
            )
        return completed.returncode

    def succeed(self, module: str, job: Path, processes: int = 1) -> Path:
        """Run an engine that must succeed, and return its output."""
        assert self.run(module, job, processes) == 0, (job / "log.txt").read_text()[-3000:]
        return job / "output"

    def losses(self, job: Path, layout: Layout) -> list[float]:
        """Finish the training in this layout, and return the losses of all steps."""
        again_in(job, layout)
        self.succeed("baton.tasks.pretrain.train", job, layout.processes)
        assert f"continuing from step {STEPS // 2}" in (job / "log.txt").read_text()
        return [step["loss"] for step in metrics(job).values()]

    def megatron(self) -> str:
        asked = "import importlib.metadata as m; print(m.version('megatron-core'))"
        return subprocess.run([self.python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()


HERE, THERE = Environment(sys.executable), Environment(OTHER)
DENSE = MODEL
EXPERTS = MODEL.model_copy(update={"family": "qwen3_moe", "experts": ExpertsSpec(count=4, ffn_hidden=32)})
ALONE = Layout(micro_batch=2)
SHARED_OUT = Layout(processes=2, distributed_optimizer=True, micro_batch=2)
TENSOR = Layout(processes=2, tensor=2, micro_batch=2)


@pytest.mark.parametrize(
    ("first", "second", "model", "before", "after"),
    [
        pytest.param(HERE, THERE, DENSE, SHARED_OUT, TENSOR, id="there, in another layout"),
        pytest.param(THERE, HERE, EXPERTS, ALONE, ALONE, id="back, experts"),
    ],
)
def test_a_run_goes_on_under_the_other_version(
    first: Environment, second: Environment, model: ModelSpec, before: Layout, after: Layout, tmp_path: Path
) -> None:
    """A run that is stopped after half of its steps has the same losses with either version. The result of the second
    version is exported and audited by the first."""
    assert first.megatron() != second.megatron()
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    data = make_shards(tmp_path / "shards", read_manifest(tokenizer).digest)
    policy = CheckpointPolicy(every=1000)
    expected = tiny_spec(model=model, steps=STEPS, precision="fp32", checkpoints=policy, layout=before)
    stays = pretrain_job(tmp_path / "stays", data, expected)
    first.run("tests.pretrain.until", stays, before.processes, STEP=str(STEPS // 2))
    assert (stays / "work/checkpoints" / f"step-{STEPS // 2:08d}").exists(), (stays / "log.txt").read_text()[-3000:]
    goes = copy(stays, tmp_path / "goes")

    same, losses = first.losses(stays, after), second.losses(goes, after)
    assert len(losses) == STEPS
    assert losses == pytest.approx(same, rel=1e-5)

    inputs = {"checkpoint": goes / "output", "tokenizer": tokenizer, "data": data}
    assert verify(inputs["checkpoint"]).versions["megatron-core"] == second.megatron()
    inputs["model"] = first.succeed("baton.tasks.convert.export", export_job(tmp_path / "export", **inputs))
    audited = first.succeed("baton.tasks.convert.audit_stage", audit_job(tmp_path / "audit", **inputs))
    assert verify(audited).facts["parameters"] == model.parameters(VOCABULARY)
