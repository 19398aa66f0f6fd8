"""How far apart the layouts of the parity matrix are, as a table for people."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch

from tasks.pretrain.layout import Layout
from tests.pretrain.parity_layouts import STEPS, SUBJECTS


@dataclass(frozen=True)
class Difference:
    """One layout against one process: the largest over all steps."""

    subject: str
    layout: Layout
    loss: float  # relative
    norm: float  # relative
    weights: float  # largest |difference| of a weight after the last step


def compare(folder: Path, subject: str, layout: Layout) -> Difference:
    here, alone = (torch.load(folder / f"{subject}-{name}.pt") for name in (layout.name(), "DP1"))
    assert here["weights"].keys() == alone["weights"].keys()
    return Difference(
        subject,
        layout,
        _relative(here["losses"], alone["losses"]),
        _relative(here["norms"], alone["norms"]),
        max(float((weight - alone["weights"][name]).abs().max()) for name, weight in here["weights"].items()),
    )


def _relative(found: list[float], reference: list[float]) -> float:
    assert len(found) == len(reference) == STEPS
    return max(abs(a - b) / abs(b) for a, b in zip(found, reference, strict=True))


def summary(differences: list[Difference]) -> str:
    """Markdown: a line for each model and number of processes."""
    lines = [
        "| model | processes | layouts | loss, relative | gradient norm, relative | weights, absolute |",
        "|---|---|---|---|---|---|",
    ]
    for (subject, world), group in groupby(differences, key=lambda item: (item.subject, item.layout.world)):
        rows = list(group)
        largest = " | ".join(f"{max(getattr(row, name) for row in rows):.0e}" for name in ("loss", "norm", "weights"))
        lines.append(f"| {subject} | {world} | {len(rows)} | {largest} |")
    return "\n".join(lines)


def every_layout(differences: Iterable[Difference]) -> str:
    """Markdown: a line for each layout."""
    lines = [
        "# The parity matrix, layout by layout",
        "",
        f"Made by `make parity`: {STEPS} steps in fp32, each layout against one process. Largest relative",
        "difference of the loss and of the gradient norm, largest absolute difference of a weight at the end.",
        "",
        *[f"- **{name}**: {subject.what}" for name, subject in SUBJECTS.items()],
        "",
        "| model | processes | layout | loss | gradient norm | weights |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {item.subject} | {item.layout.world} | {item.layout.name()} "
        f"| {item.loss:.0e} | {item.norm:.0e} | {item.weights:.0e} |"
        for item in differences
    ]
    return "\n".join(lines) + "\n"
