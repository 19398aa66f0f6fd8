"""Baton's chain for these tests: tiny, on text that every pod has, the source of Python's library."""

import json
import re
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import yaml
from blake3 import blake3

from baton.tasks.core.job import json_lines
from tests.cluster.client import Client
from tests.cluster.pod import ROOT, Pod
from tests.cluster.propeller import Cluster
from tests.cluster.storage import Storage
from tests.workflows.statements import ASKED, DATA, DPO, GRPO, SFT
from tests.workflows.test_pretrain_to_rl import TINY

EVERY = 20  # steps between checkpoints
CORPUS = {"source": {"kind": "stdlib"}, "held_out": 0.3}

BASE: dict[str, Any] = {name: TINY[name] for name in ("tokenizer", "shards", "convert")} | {
    "name": "base",
    "corpus": CORPUS,
    "pretrain": TINY["pretrain"] | {"steps": 200, "checkpoints": {"every": EVERY}},
    "audit": None,
}
# Long enough for a kill in the middle; 30 s is Kubernetes' default grace period
GRACE = {"pod": {"termination_grace_period_seconds": 30}}
TUNED: dict[str, Any] = {
    "sft": SFT["sft"] | {"steps": 200, "checkpoint_every": EVERY} | GRACE,
    "dpo": DPO["dpo"] | {"steps": 200, "checkpoint_every": EVERY} | GRACE,
    "grpo": GRPO["grpo"] | {"steps": 16, "checkpoint_every": 2} | GRACE,
}
TUNING: dict[str, Any] = {"data": DATA, "post_training": [{stage: spec} for stage, spec in TUNED.items()]}
MEASURED: dict[str, Any] = {
    "data": DATA,
    "evaluate": {"bits_per_byte": {"held_out_bytes": 400_000}, "statements": ASKED},
}
CHECKPOINT = re.compile(r"/(?:checkpoints/step|checkpoints/checkpoint|answers/part)-(\d+)/[^/]+/manifest\.json$")
KINDS = ("corpus", "rows", "tokenizer", "tokenized_corpus", "megatron_checkpoint", "hf_model", "eval_report")
STAGES = ["prepare_corpus", "train_tokenizer", "tokenize", "pretrain", "convert"]


def submit(
    client: Client,
    recipe: dict[str, Any],
    root: Path = ROOT,
    workflow: str = "pretrain_to_rl.pretrain_to_rl",
    **environment: str,
) -> Any:
    """Submit a recipe by `pyflyte run --remote`, with the code in `root`."""
    path = client.folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    module, _, name = workflow.partition(".")
    return client.run(root / f"workflows/{module}.py", name, "--recipe", str(path), **environment)


def baton(storage: Storage) -> str:
    """Return the location of the pods' artifacts, unless BATON_STORAGE names another."""
    return f"{storage.root}/raw/baton"


def manifests(storage: Storage) -> list[dict[str, Any]]:
    """Return the manifests of the artifacts in storage."""
    folder = f"{baton(storage)}/artifacts/"
    return [json.loads(storage.get(uri) or b"") for uri in storage.list(folder) if uri.endswith("/manifest.json")]


def folder_of(storage: Storage, manifest: dict[str, Any]) -> str:
    """Return the folder of an artifact in storage."""
    return f"{baton(storage)}/artifacts/{manifest['identity']}"


def digests(storage: Storage, kinds: Collection[str] = KINDS) -> set[tuple[str, str]]:
    """Return the digests of the artifacts in storage, except for artifacts that contain times."""
    return {(each["kind"], each["digest"]) for each in manifests(storage) if each["kind"] in kinds}


def whole(storage: Storage) -> bool:
    """Return whether all artifacts in storage agree with their manifests."""
    return all(
        blake3(storage.get(f"{folder_of(storage, each)}/{name}") or b"").hexdigest() == file["blake3"]
        for each in manifests(storage)
        for name, file in each["files"].items()
    )


def lose(cluster: Cluster, kind: str) -> None:
    """Delete the files of all artifacts of a kind, but not their entries in the catalog."""
    for manifest in manifests(cluster.storage):
        if manifest["kind"] == kind:
            assert cluster.storage.remove(f"{folder_of(cluster.storage, manifest)}/")


def forget(cluster: Cluster, stage: str, function: str, kind: str) -> None:
    """Remove every trace of a stage: its entry in the catalog, its artifact and its job."""
    lose(cluster, kind)
    cluster.storage.remove(f"{baton(cluster.storage)}/jobs/{stage}-")
    cluster.catalog.forget(function)


def stored_step(storage: Storage, stage: str) -> int:
    """Return the step of the newest complete checkpoint in storage of a stage's only job, or 0 if there is none."""
    found = [CHECKPOINT.search(uri) for uri in storage.list(f"{baton(storage)}/jobs/{stage}-")]
    return max((int(each[1]) for each in found if each), default=0)


class Disturbed:
    """Disturbs each attempt at a stage in turn, once the attempt has a new checkpoint in storage."""

    def __init__(self, storage: Storage, stage: str, *acts: Callable[[Pod], None]) -> None:
        self._storage, self.stage, self._acts = storage, stage, acts
        self.steps: list[int] = []  # step of the newest checkpoint before each disturbance
        self.when: list[float] = []  # time of each disturbance in seconds since the epoch
        self.saved: list[int] = []  # step of the newest checkpoint after each disturbance

    def __call__(self, pod: Pod) -> None:
        if pod.task != self.stage or pod.attempt >= len(self._acts):
            return
        known = max(self.saved, default=0)
        while pod.alive():
            if (step := stored_step(self._storage, self.stage)) > known:
                self.steps.append(step)
                self.when.append(time.time())
                self._acts[pod.attempt](pod)
                self.saved.append(stored_step(self._storage, self.stage))
                return
            time.sleep(0.05)


def steps_on_disk(pod: Pod) -> list[int]:
    """Return the steps in the metrics of the trainings on the pod's disk."""
    lines = [line for path in pod.home.glob("root/.baton/jobs/*/metrics.jsonl") for line in json_lines(path)]
    return [line["step"] for line in lines]


def saved_step(pod: Pod) -> int:
    """Return the step of the newest complete checkpoint on a pod's disk, or 0 if there is none."""
    paths = pod.home.glob("root/.baton/jobs/*/*/checkpoints/*-*/manifest.json")
    return max((int(path.parent.name.rpartition("-")[2]) for path in paths), default=0)


def training(storage: Storage, stage: str) -> dict[str, Any]:
    """Return the manifest of the output of a training stage."""
    (made,) = [
        each
        for each in manifests(storage)
        if (each["kind"] == "megatron_checkpoint" if stage == "pretrain" else each["facts"].get("label") == stage)
        and each["kind"] in ("megatron_checkpoint", "hf_model")
    ]
    return made


def recorded(storage: Storage, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the metrics of a training stage, with one entry per step."""
    there = f"{folder_of(storage, manifest)}/record/metrics.jsonl"
    lines = map(json.loads, (storage.get(there) or b"").splitlines())
    return [line for line in lines if "loss" in line]
