"""Print the differences between the layouts of the parity matrix as a table."""

import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch

from baton.tasks.pretrain.layout import Layout
from tests.pretrain.parity_layouts import STEPS, SUBJECTS, legal_layouts

PAGE = Path(__file__).parents[2] / "docs/testing.md"
TABLE = Path(__file__).parent / "PARITY.md"


@dataclass(frozen=True)
class Difference:
    """The largest differences between one layout and one process over all steps."""

    subject: str
    layout: Layout
    loss: float  # relative
    norm: float  # relative
    weights: float  # largest |difference| of a weight after the last step


def result(folder: Path, subject: str, layout: Layout) -> Path:
    """Return the results of tests.pretrain.parity for a layout."""
    return folder / f"{subject}-{layout.name()}.pt"


def compare(folder: Path, subject: str, layout: Layout) -> Difference:
    here, alone = (torch.load(result(folder, subject, each)) for each in (layout, Layout()))
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


def record(world: int, found: list[Difference]) -> None:
    """Write the results of `world` processes to PARITY.md, and their summary to docs/testing.md."""
    others = [line for line in _lines() if int(line.split(" | ")[1]) != world]
    lines = sorted([*others, *map(_line, found)], key=_place)
    TABLE.write_text("\n".join([*_head(), *lines]) + "\n")
    section = f"<!-- parity -->\n{_summary(lines)}\n<!-- /parity -->"
    PAGE.write_text(re.sub(r"<!-- parity -->.*<!-- /parity -->", lambda _: section, PAGE.read_text(), flags=re.S))


def _lines() -> list[str]:
    return (
        [line for line in TABLE.read_text().splitlines() if re.match(r"\| \w+ \| \d", line)] if TABLE.exists() else []
    )


def _line(item: Difference) -> str:
    figures = " | ".join(f"{value:.0e}" for value in (item.loss, item.norm, item.weights))
    return f"| {item.subject} | {item.layout.world} | {item.layout.name()} | {figures} |"


def _place(line: str) -> tuple[int, int]:
    """Return a key that sorts by model, then by processes."""
    _, subject, world, *_ = (word.strip() for word in line.split("|"))
    return list(SUBJECTS).index(subject), int(world)


def _head() -> list[str]:
    return [
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


def _summary(lines: list[str]) -> str:
    """Return a line for each model and number of processes."""
    table = [
        "| model | processes | layouts | of | loss, relative | gradient norm, relative | weights, absolute |",
        "|---|---|---|---|---|---|---|",
    ]
    for (number, world), group in groupby(lines, key=_place):
        figures = [[float(word) for word in line.split("|")[4:7]] for line in group]
        largest = " | ".join(f"{max(column):.0e}" for column in zip(*figures, strict=True))
        subject = list(SUBJECTS)[number]
        legal = len(list(legal_layouts(subject, world)))
        table.append(f"| {subject} | {world} | {len(figures)} | {legal} | {largest} |")
    return "\n".join(table)
