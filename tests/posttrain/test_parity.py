"""Every layout trains the same model, and continues a run that another layout started.

Rows are repeated. The last step of an epoch has 6 rows, or 5 for DPO, so some processes get more rows than others,
and with four processes some get none.
"""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.posttrain.ranks import run_all
from tests.posttrain.tiny import GRADIENTS, metrics, repeated_words, reward, tiny_model, tiny_rows, write_job

SPEC: dict[str, Any] = {
    "data": "twice",
    "steps": 8,
    "batch_size": 8,
    "warmup_steps": 2,
    "learning_rate": 0.003,
    "max_new_tokens": 16,
    "checkpoint_every": 3,
    "precision": "fp32",
}
METHODS: dict[str, dict[str, Any]] = {"full": {}, "lora": {"adapter": {"lora": {"rank": 4, "alpha": 8}}}}
CASES = list(product(("sft", "dpo", "kto", "grpo"), METHODS))
PROCESSES, SHARDINGS = (1, 2, 4), ("ddp", "fsdp2")
IN_CI = {(stage, processes) for stage in ("sft", "dpo") for processes in PROCESSES} | {
    ("kto", 2),
    ("grpo", 2),
}  # the other cases are slow
OFFLOADED = "offloaded"  # fsdp2 with CPU offload
SPREAD = [*product(CASES, SHARDINGS, PROCESSES), *product([("dpo", "full"), ("grpo", "lora")], [OFFLOADED], [2])]
LAYOUTS = [
    pytest.param(stage, method, sharding, processes, marks=[] if (stage, processes) in IN_CI else pytest.mark.slow)
    for (stage, method), sharding, processes in SPREAD
]
WRAPPERS = {"ddp": ["ddp"], "fsdp2": ["fsdp2", "OffloadPolicy"], OFFLOADED: ["fsdp2", "CPUOffloadPolicy"]}
REWARDS = ("near", "diversity")
MEANS = ("entropy", "token_accuracy", "tokens", "kl", "margin", "logp_chosen", "logp_rejected")
SYNCED = "synced.safetensors"  # written by recorded.py
# fp32 tolerances of losses and weights, and relative ones of gradients and their norms, since the order of sums over
# tokens, tensors and processes affects rounding
TOLERANCE, GRADIENT_TOLERANCE = 1e-6, 1e-5


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    """An fp32 model for each stage, with 30 or 29 rows."""
    root = tmp_path_factory.mktemp("parity")
    model = tiny_model(root / "model", dtype="float32")
    preferences = [row | {"chosen": row["completion"], "rejected": " no, not this"} for row in repeated_words(29)]
    labelled = [
        row | ({"label": True} if number % 3 else {"label": False, "completion": " no, not this"})
        for number, row in enumerate(repeated_words(30))
    ]
    return {
        "sft": {"model": model, "rows": tiny_rows(root / "rows", repeated_words(30), "prompt_completion")},
        "dpo": {"model": model, "rows": tiny_rows(root / "preferences", preferences, "preference")},
        "kto": {"model": model, "rows": tiny_rows(root / "labelled", labelled, "prompt_completion")},
        "grpo": {"model": model, "rows": tiny_rows(root / "prompts", repeated_words(30), "prompt_completion")},
    }


def spec_of(stage: str, method: str, folder: Path) -> dict[str, Any]:
    """Return a stage's spec. GRPO's groups of 4 are divided by 4 processes, and one of its rewards compares the
    completions of a group.

    A token's embedding has a gradient 100 times larger when the token is first drawn, and Adam divides its rounding
    error by the earlier small gradients. With a learning_rate of 0.003 one process differs by 1.1e-6 from a run in
    fp64, with 0.001 by 0.3e-6.
    """
    rewards = [reward(folder, "near"), {"diversity": {}, "weight": 0.5}]
    grpo = {"generations": 4, "rewards": rewards, "learning_rate": 0.001}
    return SPEC | METHODS[method] | (grpo if stage == "grpo" else {})


class Runs:
    """Runs of all cases that are compared, each computed on first use."""

    def __init__(self, root: Path, inputs: dict[str, dict[str, Path]]) -> None:
        self.root, self.inputs = root, inputs

    def of(self, stage: str, method: str, sharding: str = "none", processes: int | None = None) -> Path:
        """Return the job directory of a run. Without processes it is one process without torchrun, with one micro
        batch per step."""
        job = self._job(stage, method, sharding, processes)
        if not job.exists():
            together = [case for case in CASES if ((case[0], processes) in IN_CI) == ((stage, processes) in IN_CI)]
            spread = SPREAD if processes else product(CASES, [sharding], [None])
            run_all(
                [
                    self._write(*case, layout, count)
                    for case, layout, count in spread
                    if case in together and count == processes
                ],
                processes,
            )
        return job

    def _job(self, stage: str, method: str, sharding: str, processes: int | None) -> Path:
        return self.root / f"{stage}-{method}-{sharding}-{processes or 'alone'}"

    def _write(self, stage: str, method: str, sharding: str, processes: int | None) -> Path:
        how = {"sharding": "fsdp2", "cpu_offload": True} if sharding == OFFLOADED else {"sharding": sharding}
        layout = (
            {"processes": processes, "micro_batch": max(4 // processes, 1 + (stage == "kto")), **how}
            if processes
            else {}
        )
        spec = spec_of(stage, method, self.root / "rewards") | ({"layout": layout} if layout else {})
        return write_job(self._job(stage, method, sharding, processes), stage, spec, **self.inputs[stage])


@pytest.fixture(scope="module")
def runs(inputs: dict[str, dict[str, Path]], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"), inputs)


def difference(one: Path, other: Path) -> float:
    """Return the largest difference between two runs' losses, gradient norms, other means and weights, in units of
    their tolerance. All differences but those of weights are relative to values of at least 1."""
    found = []
    tolerances = {"loss": TOLERANCE, "grad_norm": GRADIENT_TOLERANCE}
    tolerances |= dict.fromkeys(MEANS, GRADIENT_TOLERANCE)
    tolerances |= dict.fromkeys({"reward", "reward_std", *REWARDS} & metrics(one)[-1].keys(), TOLERANCE)
    first, second = metrics(one), metrics(other)
    assert [line["step"] for line in first] == [line["step"] for line in second]
    for ours, theirs in zip(first[1:], second[1:], strict=True):
        assert ours.keys() == theirs.keys()
        compared = tolerances.keys() & theirs.keys()
        found += [abs(ours[name] - theirs[name]) / max(1, abs(theirs[name])) / tolerances[name] for name in compared]
    weights, others = (load_file(job / "output" / "model.safetensors") for job in (one, other))
    assert weights.keys() == others.keys()
    return max(*found, *(float((weights[name] - others[name]).abs().max()) / TOLERANCE for name in weights))


def gradient_difference(one: Path, other: Path) -> float:
    """Return the largest difference between two runs' gradients of a tensor in a step, relative to their norm, in
    units of the tolerance. The weights would not show a wrong scale, which Adam cancels, and the norm of all
    gradients would not show a wrong direction."""
    found = []
    steps = sorted(file.name for file in (other / GRADIENTS).iterdir())
    assert steps == sorted(file.name for file in (one / GRADIENTS).iterdir())
    for step in steps:
        ours, theirs = (load_file(job / GRADIENTS / step) for job in (one, other))
        assert ours.keys() == theirs.keys()
        for name, gradient in theirs.items():
            norm = float(gradient.norm()) or 1  # LoRA's A has a gradient of zero while B is 0
            found.append(float((ours[name] - gradient).norm()) / norm / GRADIENT_TOLERANCE)
    return max(found)


@pytest.mark.long
@pytest.mark.parametrize(("stage", "method", "sharding", "processes"), LAYOUTS)
def test_a_layout_trains_the_model_of_one_process(
    runs: Runs, stage: str, method: str, sharding: str, processes: int
) -> None:
    job, alone = runs.of(stage, method, sharding, processes), runs.of(stage, method)
    found, of_gradients = difference(job, alone), gradient_difference(job, alone)
    print(f"parity: {stage} {method} {sharding} {processes}: {found:.2g}, {of_gradients:.2g} of the tolerances")

    assert max(found, of_gradients) < 1
    # Accelerate silently trains modules that it does not shard with DDP
    assert (job / "wrapper").read_text().split() == WRAPPERS[sharding]


@pytest.mark.long
@pytest.mark.parametrize(("stage", "method"), CASES)
def test_the_training_changes_the_model(
    runs: Runs, inputs: dict[str, dict[str, Path]], stage: str, method: str
) -> None:
    """Otherwise all layouts would trivially agree."""
    job = runs.of(stage, method)
    before, after = (load_file(path / "model.safetensors") for path in (inputs[stage]["model"], job / "output"))
    assert max(float((after[name] - before[name]).abs().max()) for name in before) > 1e-3
    if stage != "grpo":
        lines = metrics(job)
        # KTO's losses are between 0 and 1
        assert lines[-1]["loss"] < lines[1]["loss"] - (0.02 if stage == "kto" else 0.05)


@pytest.mark.long
@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("method", METHODS)
def test_every_rank_s_engine_gets_the_whole_merged_weights(runs: Runs, method: str, sharding: str) -> None:
    """The weights are those of the last sync; an adapter is merged into sharded weights."""
    ours, theirs = (load_file(job / SYNCED) for job in (runs.of("grpo", method, sharding, 2), runs.of("grpo", method)))
    assert ours.keys() == theirs.keys()
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < TOLERANCE
