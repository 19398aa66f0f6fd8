"""The honest bar: did reinforcement learning make the model better without making it dull?"""

from dataclasses import dataclass

from infra.text import points, share
from tasks.report.blocks import Block, Cell, Mark, Table, Text
from tasks.report.source import Source

MORE_PASSING = 0.20  # all checks, at least this much more of all completions
STILL_DISTINCT = 0.60  # of the share of distinct completions before, at least
MORE_BITS = 0.10  # bits per byte, less than this much more, relative


@dataclass(frozen=True)
class Line:
    measure: str
    before: str
    after: str
    change: str
    asked: str
    met: bool


def compare(before: Source, after: Source) -> list[Line]:
    """The three conditions, from two evaluation reports of the same prompts."""
    old, new = before.manifest.facts, after.manifest.facts
    gained = new["all_checks"] - old["all_checks"]
    kept = _ratio(new["distinct"], old["distinct"])
    dearer = _ratio(new["bits_per_byte"], old["bits_per_byte"]) - 1
    return [
        Line("all checks", share(old["all_checks"]), share(new["all_checks"]), points(gained),
             f"≥ {points(MORE_PASSING)}", gained >= MORE_PASSING - 1e-9),
        Line("distinct", share(old["distinct"]), share(new["distinct"]), f"{share(kept)} kept",
             f"≥ {STILL_DISTINCT:.0%} kept".replace("%", " %"), kept >= STILL_DISTINCT - 1e-9),
        Line("bits per byte", f"{old['bits_per_byte']:.3f}", f"{new['bits_per_byte']:.3f}", f"{100 * dearer:+.1f} %",
             f"< +{MORE_BITS:.0%}".replace("%", " %"), dearer < MORE_BITS),
    ]  # fmt: skip


def start_of(model: Source, evaluations: list[Source]) -> Source | None:
    """The evaluation of the model that `model` was tuned from, by its parents' digests."""
    parents = set(model.manifest.parents.values())
    return next((each for each in evaluations if evaluated(each) in parents), None)


def evaluation_of(model: Source, evaluations: list[Source]) -> Source | None:
    return next((each for each in evaluations if evaluated(each) == model.manifest.digest), None)


def evaluated(evaluation: Source) -> str:
    """The digest of the model that was evaluated."""
    return str(evaluation.manifest.facts["model_digest"])


def verdict(models: list[Source], evaluations: list[Source]) -> list[Block]:
    """The bar for the GRPO model, met or not; a plain word when it cannot be told; nothing without GRPO."""
    tuned = next((each for each in models if each.label == "grpo"), None)
    if tuned is None:
        return []
    before, after = start_of(tuned, evaluations), evaluation_of(tuned, evaluations)
    if before is None or after is None:
        return [Text("No bar: GRPO's model, or the one that it started from, was not evaluated in this run.", "quiet")]
    lines = compare(before, after)
    met = sum(line.met for line in lines)
    said = f"{after.label.upper()} against {before.label.upper()}, the model it started from: "
    said += "all three conditions met." if met == len(lines) else f"{met} of {len(lines)} conditions met."
    rows: list[list[Cell]] = [
        [line.measure, Mark("✓ met", "good") if line.met else Mark("✗ not met", "bad"),
         line.before, line.after, line.change, line.asked]
        for line in lines
    ]  # fmt: skip
    columns = ["measure", "verdict", before.label, after.label, "change", "asked"]
    whole = met == len(lines)
    return [
        Text(("✓ " if whole else "✗ ") + said, "good" if whole else "bad"),
        Table("The bar", columns, rows, "llrrrr"),
    ]


def _ratio(new: float, old: float) -> float:
    """new/old; nothing cannot be kept, and from nothing any gain is endless."""
    return new / old if old else (float("inf") if new else 1.0)
