"""Detect anomalous training steps, identify their batches, and log them.

A step is judged by its loss and gradient norm before the optimizer uses them. Rolling back to a checkpoint and skipping
the batches around a spike follows PaLM (Chowdhery et al. 2022, section 5.1).

    JOB_DIR/anomalies.jsonl    one object per line: {"step", "kind", "why", "loss", "grad_norm", "reaction",
                               "first", "count", "samples": [{"data", "documents"}, …]}

"first" and "count" are the batch's position in the shuffled order. Each sample has the path of its data set and the
indices of its documents in that data set.
"""

import json
import math
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from baton.infra.storage.durable import write_text
from baton.tasks.core.job import json_lines
from baton.tasks.core.nodes import Nodes
from baton.tasks.pretrain.spec import AnomalySpec, Reaction

FILE = "anomalies.jsonl"
FEWEST_LOSSES = 8  # minimum for a meaningful mean and deviation
COUNTED = ("skip", "roll_back")  # reactions that count towards `limit`


@dataclass(frozen=True)
class Anomaly:
    """An anomaly of a step."""

    kind: Literal["nan", "spike"]  # NaN or Inf, or a loss that is too high
    why: str
    loss: float
    grad_norm: float


@dataclass(frozen=True)
class Watch:
    """Judges steps. Stateless: the losses that it compares with are part of the training state."""

    spec: AnomalySpec

    def judge(self, loss: float, grad_norm: float, losses: Sequence[float]) -> Anomaly | None:
        """Return the anomaly of a step, if any. `losses`: those of the last optimizer steps, newest last. A spike
        exceeds their mean by more than `spike_deviations` sample standard deviations (n - 1)."""
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            return Anomaly("nan", f"loss {loss}, gradient norm {grad_norm}", loss, grad_norm)
        if len(losses) < FEWEST_LOSSES:
            return None
        mean, deviation = statistics.fmean(losses), statistics.stdev(losses)
        if loss <= mean + self.spec.spike_deviations * deviation:
            return None
        why = f"loss {loss:.4f} after {mean:.4f} ± {deviation:.4f} in the last {len(losses)} steps"
        return Anomaly("spike", why, loss, grad_norm)

    def reaction(self, anomaly: Anomaly) -> Reaction:
        reaction: Reaction = getattr(self.spec, f"on_{anomaly.kind}")
        return reaction

    def remember(self, losses: Sequence[float], loss: float) -> list[float]:
        """Return the losses to compare the next step with, after an optimizer step with this loss."""
        return [*losses, loss][-self.spec.window :]


class AnomalyLog:
    """The anomalies of a job. Every process reads the log at the start and counts for itself; one process writes.

    A run that was killed and repeats a step finds the same anomaly again, which is not logged twice."""

    def __init__(self, folder: Path, watch: Watch, writer: bool, nodes: Nodes | None = None) -> None:
        self.path, self.watch, self.writer = folder / FILE, watch, writer
        known = nodes.on_first(self._read) if nodes else self._read()
        self._known = {(entry["first"], entry["reaction"]) for entry in known}
        if writer and self.path.exists():  # the previous writer may have been killed in the middle of a line
            write_text(self.path, "".join(json.dumps(entry) + "\n" for entry in known))

    def _read(self) -> list[dict[str, Any]]:
        return json_lines(self.path) if self.path.exists() else []

    def add(self, step: int, anomaly: Anomaly, span: range, dataset: Any) -> Reaction:
        """Log an anomaly in step `step` on the samples `span`. Returns the reaction: the spec's, or "stop" once `limit`
        steps were skipped or rolled back."""
        reaction = self.watch.reaction(anomaly)
        counted = {first for first, earlier in self._known if earlier in COUNTED}
        if reaction in COUNTED and span.start not in counted and len(counted) >= self.watch.spec.limit:
            reaction = "stop"
        new = (span.start, reaction) not in self._known
        self._known.add((span.start, reaction))
        if self.writer and new:
            place = {"first": span.start, "count": len(span), "samples": identity(dataset, span)}
            entry = {"step": step, **asdict(anomaly), "reaction": reaction, **place}
            with self.path.open("a") as stream:
                stream.write(json.dumps({name: _plain(value) for name, value in entry.items()}) + "\n")
            where = f"samples {span.start} to {span.stop - 1}, see {FILE}"
            print(f"step {step}: {anomaly.why}: {reaction} ({where})", flush=True)
        return reaction

    def stop_message(self, step: int, anomaly: Anomaly, span: range) -> str:
        """Return the message with the reason of the stop, the place to look at, and the setting to change."""
        fix = f"set anomalies.on_{anomaly.kind} to skip or roll_back"
        if self.watch.reaction(anomaly) in COUNTED:
            fix = f"{self.watch.spec.limit} batches were already skipped or rolled back (anomalies.limit)"
        where = f"samples {span.start} to {span.stop - 1} of the shuffled order; their documents are in {self.path}"
        return f"step {step}: {anomaly.why}. Its batch is {where}. Lower optimizer.lr or check the data; {fix}"

    def copy_to(self, folder: Path) -> None:
        if self.path.exists():
            shutil.copy(self.path, folder / FILE)


def identity(dataset: Any, span: range) -> list[dict[str, Any]]:
    """Return the origin of samples of a GPTDataset or BlendedDataset."""
    return [_origin(dataset, index % len(dataset)) for index in span]


def _origin(dataset: Any, index: int) -> dict[str, Any]:
    if hasattr(dataset, "dataset_sample_index"):  # a blend, which has indices of data sets and of samples in them
        part, index = dataset.dataset_index[index], dataset.dataset_sample_index[index]
        return _origin(dataset.datasets[part], index)
    place = dataset.shuffle_index[index]
    (begin, _), (end, _) = dataset.sample_index[place], dataset.sample_index[place + 1]
    return {"data": str(dataset.dataset_path), "documents": dataset.document_index[begin : end + 1].tolist()}


def _plain(value: Any) -> Any:
    """Convert a value for JSON, which has no NaN."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
