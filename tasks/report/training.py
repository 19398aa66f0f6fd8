"""Which training metrics are drawn, together and in what order."""

from infra.charts import Figure, Points, curves
from infra.text import words
from tasks.report.blocks import Grid
from tasks.report.source import Source

# title -> metrics of one panel; what an engine did not stream is left out
PANELS: dict[str, tuple[str, ...]] = {
    "Reward": ("reward",),
    "Loss": ("loss", "validation_loss"),
    "Rollout mismatch, mean exp|Δ log p|": ("rollout_mismatch",),
    "KL to the reference": ("kl",),
    "Margin of the chosen": ("margin",),
    "Preference accuracy": ("preference_accuracy",),
    "Log-probability": ("logp_chosen", "logp_rejected"),
    "Token accuracy": ("token_accuracy",),
    "Spread of the reward": ("reward_std",),
    "Entropy": ("entropy",),
    "Completion length, tokens": ("completion_length",),
    "Completions cut off": ("cut_off",),
    "Tokens per second": ("tokens_per_s",),
    "Model FLOPs utilisation": ("mfu",),
    "Gradient norm": ("grad_norm",),
    "Learning rate": ("lr", "learning_rate"),
}


def training_curves(source: Source) -> list[Grid]:
    """Every metric of a training, the known ones first; nothing when there is none."""
    series = source.series()
    figures = [
        curves(title, shown)
        for title, names in PANELS.items()
        if (shown := {words(name): series[name] for name in names if name in series})
    ]
    known = {name for names in PANELS.values() for name in names}
    figures += [_alone(name, points) for name, points in series.items() if name not in known]
    return [Grid(figures)] if figures else []


def _alone(name: str, points: Points) -> Figure:
    title = words(name)
    return curves(title[:1].upper() + title[1:], {title: points})
