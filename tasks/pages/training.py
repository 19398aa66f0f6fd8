"""Group training metrics into charts."""

from baton.infra.drawing.charts import curves
from baton.infra.text import number, words
from baton.tasks.pages.blocks import Block, Cell, Grid, Table
from baton.tasks.pages.source import Source

# Title -> metrics of one chart, without those that the engine did not log
PANELS: dict[str, tuple[str, ...]] = {
    "Reward": ("reward",),
    "Loss": ("loss", "validation_loss"),
    "Rollout mismatch, mean exp|Δ log p|": ("rollout_mismatch",),
    "KL to the reference": ("kl",),
    "Preference margin": ("margin",),
    "Preference accuracy": ("preference_accuracy",),
    "Log-probability": ("logp_chosen", "logp_rejected"),
    "Token accuracy": ("token_accuracy",),
    "Reward standard deviation": ("reward_std",),
    "Entropy": ("entropy",),
    "Completion length, tokens": ("completion_length",),
    "Truncated completions": ("cut_off",),
    "Tokens per second": ("tokens_per_s",),
    "Model FLOPs utilisation": ("mfu",),
    "Gradient norm": ("grad_norm",),
    "Learning rate": ("lr", "learning_rate"),
}


def training_curves(source: Source) -> list[Block]:
    """Return charts of every training metric, the known ones first, and a table of those that were logged only once;
    empty if there is none."""
    series = source.series()
    known = {name for names in PANELS.values() for name in names}
    panels = {**PANELS, **{name: (name,) for name in series if name not in known}}
    figures, once = [], dict[str, float]()
    for title, names in panels.items():
        lines = {name: series[name] for name in names if name in series}
        if any(len(points) > 1 for points in lines.values()):
            figures.append(curves(title, lines))
        else:
            once |= {name: points[-1][1] for name, points in lines.items() if points}
    blocks: list[Block] = [Grid(figures)] if figures else []
    if once:
        rows: list[list[Cell]] = [[words(name), number(value)] for name, value in once.items()]
        blocks.append(Table("Metrics that were logged once", ["metric", "value"], rows))
    return blocks
