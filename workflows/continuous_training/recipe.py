"""The recipe of continuous training: an ordinary recipe, and how training continues on new text.

The first run makes the first generation as the ordinary recipe says. Each later one reads the new text in `corpus`,
continues training as `grow` says, and `promotion` decides whether the result replaces the champion.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field

from baton.tasks.convert.spec import ConvertSpec
from baton.tasks.core.spec import Problem, Spec
from baton.tasks.data.spec import CorpusSpec, ShardsSpec, TokenizerSpec
from baton.tasks.evaluate.results import BITS, SETS
from baton.tasks.evaluate.spec import EvaluateSpec
from baton.tasks.pretrain.optimizer_spec import OptimizerSpec
from baton.tasks.pretrain.spec import PretrainSpec
from baton.tasks.promote.spec import PromotionSpec
from baton.tasks.publish.spec import PublishSpec
from baton.workflows.continuous_training.replay import Tokens, blend
from baton.workflows.recipe import SECTIONS as RECIPE_SECTIONS
from baton.workflows.recipe import Recipe

OFF = ("start_from", "more_corpora")


class GrowSpec(Spec):
    """The continuation of training on new text."""

    replay: float = Field(0.5, ge=0, lt=1, description="Share of each step's sequences taken from earlier runs' text")
    epochs: float = Field(1.0, gt=0, le=100, description="Epochs over the new text")
    min_bytes: int = Field(
        1, ge=1, description="With less new text than this, nothing is trained until the next run; bytes"
    )
    min_steps: int = Field(10, ge=1, description="Minimum of optimizer steps, however little text is new")
    max_steps: int | None = Field(None, ge=1, description="Maximum of optimizer steps, however much text is new")
    lr: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Peak learning rate after the warm-up of a run; null: a third of pretraining's",
    )
    min_lr: float | None = Field(
        None, ge=0, le=1, description="Final learning rate; the next run warms up from it; null: pretraining's"
    )
    warmup: float = Field(0.1, ge=0, lt=1, description="Share of the steps that is warm-up")
    compact: int = Field(
        32,
        ge=2,
        description="Accepted generations whose text is put together to one data set: Megatron slows down with the "
        "number of data sets, and fails with some 590",
    )
    on_overlap: Literal["wait", "skip"] = Field(
        "wait", description="Whether a run waits while another works on the same model, or is skipped"
    )

    def problems(self) -> list[Problem]:
        problems = []
        if self.lr is not None and self.min_lr is not None and self.min_lr > self.lr:
            problems.append(Problem("min_lr", self.min_lr, f"at most lr ({self.lr})"))
        if self.max_steps is not None and self.max_steps < self.min_steps:
            problems.append(Problem("max_steps", self.max_steps, f"at least min_steps ({self.min_steps})"))
        return problems

    def is_enough(self, documents: int, size: int) -> bool:
        """Return whether there is new text to train on. `size` is in bytes."""
        return documents > 0 and size >= self.min_bytes

    def steps(self, new_tokens: int, tokens_per_step: int) -> int:
        """Optimizer steps for `epochs` over the new text, replay included."""
        steps = math.ceil(new_tokens * self.epochs / (1 - self.replay) / tokens_per_step)
        return max(self.min_steps, min(steps, self.max_steps or steps))

    def rates(self, first: OptimizerSpec) -> tuple[float, float]:
        """(peak, final) learning rate; `first`: the resolved optimizer of the first generation."""
        assert first.lr is not None and first.min_lr is not None
        final = first.min_lr if self.min_lr is None else self.min_lr
        return max(final, float(f"{first.lr / 3:.3g}")) if self.lr is None else self.lr, final

    def pretraining(
        self, first: PretrainSpec, new: Tokens, old: Sequence[Tokens], weights: Mapping[str, float], warm_from: float
    ) -> PretrainSpec:
        """The spec of a run on the `old` data sets and a new one, which is last; `weights`: the sources', if any.
        `first`: the resolved spec of the first generation."""
        steps = self.steps(sum(new.values()), first.global_batch * first.sequence_length)
        warmup = min(math.ceil(self.warmup * steps), steps - 1)
        lr, min_lr = self.rates(first.optimizer)
        schedule: dict[str, Any] = {"lr": lr, "min_lr": min(lr, min_lr), "decay": "cosine", "wsd_decay_steps": 0}
        schedule |= {"warmup_from": min(warm_from, lr) if warmup else 0.0, "warmup_steps": warmup}
        optimizer = first.optimizer.model_copy(update=schedule)
        shares = blend(new, old, self.replay, weights)
        named = any(name for of_data in shares for name in of_data)
        changed: dict[str, Any] = {"steps": steps, "optimizer": optimizer, "batch_warmup": None}
        changed |= {"data_weights": [sum(of_data.values()) for of_data in shares]}
        changed |= {"source_weights": shares if named else []}
        return first.model_copy(update=changed)


class RefreshSpec(Spec):
    """Post-training repeated after each promotion of the base."""

    name: str = Field(
        "baton-tuned",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$",
        description="Name of the tuned model in the registry",
    )
    promotion: PromotionSpec = Field(
        description="When the tuned model replaces its champion: the metric is one of `evaluate`"
    )


class ScheduleSpec(Spec):
    """The start times of the launch plans, as cron expressions of five fields, in UTC."""

    continue_training: str = Field("0 2 * * *", description="Nightly, by default")
    refresh_rl: str = Field("0 4 * * 0", description="Weekly, by default; a promotion of the base starts it too")
    notify: list[str] = Field([], description="Email addresses to notify of a run that failed or timed out")
    retries: int = Field(2, ge=0, le=10, description="Restarts of a failed run, which continues where it stopped")

    def problems(self) -> list[Problem]:
        allowed = "a cron expression of five fields, of dates that exist: minute hour day month weekday: '0 2 * * *'"
        crons = {"continue_training": self.continue_training, "refresh_rl": self.refresh_rl}
        problems = [Problem(name, cron, allowed) for name, cron in crons.items() if not _has_dates(cron)]
        return problems + [Problem("notify", mail, "an email address") for mail in self.notify if "@" not in mail[1:-1]]


def _has_dates(cron: str) -> bool:
    """Return whether a text is a cron expression with a next date, as flytekit requires: `0 0 30 2 *` has none, and
    `R 2 * * *`, which only croniter knows, has another one each time."""
    from croniter import croniter  # what flytekit parses them with

    fields = cron.split()
    if len(fields) != 5 or any(field.lower().startswith("r") for field in fields):
        return False
    try:
        croniter(cron).get_next()
    except ValueError:  # its errors' base
        return False
    return True


class ContinuousRecipe(Recipe):
    """A recipe, and how its training continues."""

    tokenizer: TokenizerSpec = Field(description="Tokenizer of all generations")
    shards: ShardsSpec = Field(description="Tokenized shards")
    pretrain: PretrainSpec = Field(description="Pretraining of the first generation; all have the same model")
    convert: ConvertSpec = Field(description="Export to Hugging Face")
    corpus: CorpusSpec = Field(description="Where new text comes from")
    evaluate: EvaluateSpec = Field(description="Evaluation of candidate and champion on the same held-out text")
    publish: PublishSpec = Field(description="The model in the registry, whose versions are the generations")
    grow: GrowSpec = Field(GrowSpec(), description="How training continues on new text")
    promotion: PromotionSpec = Field(PromotionSpec(), description="When a candidate replaces the champion")
    refresh: RefreshSpec | None = Field(None, description="Repeat the post-training after a promotion; null: off")
    schedule: ScheduleSpec = Field(ScheduleSpec(), description="When the launch plans run")

    def pinned_except_corpus(self) -> Self:
        """A copy with the present state of the files that it names, except those of the corpus, which a night lists
        once."""
        others = self.model_copy(update={"corpus": None}).pinned()
        return others.model_copy(update={"corpus": self.corpus})

    def crons(self) -> dict[str, str]:
        """Return the start times of each launch plan, by its name."""
        plans = {"nightly": self.schedule.continue_training}
        return plans | ({"weekly": self.schedule.refresh_rl} if self.refresh else {})

    def problems(self) -> list[Problem]:
        problems = [
            Problem(name, "on", "not possible in continuous training, whose text comes from `corpus`; leave it out")
            for name in OFF
            if getattr(self, name)
        ]
        if self.publish.alias:
            problems.append(Problem("publish.alias", self.publish.alias, "null: the promotion moves the alias"))
        if self.publish.hub:
            allowed = "null: a candidate is published before it is compared; export the champion with `baton export`"
            problems.append(Problem("publish.hub", self.publish.hub, allowed))
        if self.refresh and not self.post_training:
            problems.append(Problem("refresh", "on", "needs at least one stage in post_training"))
        if self.stages and not self.refresh:
            allowed = "none without `refresh`, which runs them beside the post-training: add it, or leave them out"
            problems.append(Problem("stages", len(self.stages), allowed))
        if self.refresh and self.refresh.name == self.publish.name:
            problems.append(Problem("refresh.name", self.refresh.name, "another name than publish.name, the base's"))
        rules = {"promotion": self.promotion} | ({"refresh.promotion": self.refresh.promotion} if self.refresh else {})
        return problems + [problem.under(path) for path, rule in rules.items() for problem in self._not_compared(rule)]

    def _not_compared(self, rule: PromotionSpec) -> list[Problem]:
        """The metrics of a rule that are not measured, or not per item; task_checks.py looks up those of lm-eval."""
        bits = [f"{which}.{BITS}" for which in SETS]
        known = [name for name in self.evaluate.metrics() if name != BITS and not name.endswith(".distinct")]
        known = (bits if self.evaluate.bits_per_byte else []) + known
        of_lm_eval = [name for name, evaluator in self.evaluate.evaluators().items() if evaluator.lm_eval]
        fix = "a per-item metric: add `bits_per_byte`, or an evaluator with `data` and `rewards`"
        shown = [*known, *(f"{name}.<task>.<metric>" for name in of_lm_eval)]
        allowed = f"one of {', '.join(shown)}" if shown else fix
        asked = [("metric", rule.metric), *(("regressions", name) for name in rule.regressions if name not in bits)]
        return [
            Problem(field, name, allowed)
            for field, name in asked
            if name not in known and name.partition(".")[0] not in of_lm_eval
        ]


OWN_SECTIONS = ContinuousRecipe.model_fields.keys() - Recipe.model_fields.keys()


def recipe_of(content: Any) -> Recipe:
    """Validate a file's content as a ContinuousRecipe if it has one of its sections, else as a Recipe. Raises
    RecipeError."""
    continuous = isinstance(content, dict) and content.keys() & OWN_SECTIONS
    return (ContinuousRecipe if continuous else Recipe).model_validate(content)


SECTIONS: dict[str, type[Spec]] = RECIPE_SECTIONS | {
    "grow": GrowSpec,
    "promotion": PromotionSpec,
    "refresh": RefreshSpec,
    "schedule": ScheduleSpec,
}
