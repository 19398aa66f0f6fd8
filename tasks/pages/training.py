"""Group training metrics into charts."""

from baton.infra.drawing.charts import curves
from baton.tasks.pages.blocks import Grid
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


def training_curves(source: Source) -> list[Grid]:
    """Return charts of every training metric, the known ones first; empty if there is none."""
    series = source.series()
    figures = [
        curves(title, shown)
        for title, names in PANELS.items()
        if (shown := {name: series[name] for name in names if name in series})
    ]
    known = {name for names in PANELS.values() for name in names}
    figures += [curves(name, {name: points}) for name, points in series.items() if name not in known]
    return [Grid(figures)] if figures else []
