"""The DAGs of continuous training as data.

    found(recipe, corpus, known)     a night's new text
    tokenized(recipe, is_first)      the shards of that text
    trained(recipe, night)           training, the comparison with the champion, and the promotion
    refreshed(recipe, …)             the champion's post-training, with its own comparison and promotion

The shape of a night depends on what its earlier calls found, so each function lists the calls of one part. As in
workflows/dag/calls.py, nothing is looked up or run here. A call's inputs are outputs of calls of the same part or of
earlier ones, and artifacts of earlier generations, whose names are those of `of_version` and `SERVING`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from baton.tasks.choose.spec import ChooseSpec
from baton.tasks.data.spec import CorpusSpec, GatherSpec
from baton.tasks.pretrain.optimizer_spec import OptimizerSpec
from baton.tasks.pretrain.spec import PretrainSpec
from baton.tasks.promote.spec import PromoteSpec, PromotionSpec
from baton.tasks.report.spec import ReportSpec
from baton.workflows.continuous_training.recipe import ContinuousRecipe
from baton.workflows.continuous_training.replay import Tokens, source_weights, summed
from baton.workflows.dag.call import Calls
from baton.workflows.dag.corpora import evaluated_names, new_of, shards_of
from baton.workflows.dag.custom_stages import EVALUATION
from baton.workflows.dag.post_training import BASE, CHAMPION
from baton.workflows.dag.tuning import custom_parts, decontaminated, parts_of, prepared, rewards_tried, rows_of, tuned

NEW_TEXT = "increment"  # title of the call that finds it
SERVING = "the champion"  # name that calls have for its model


@dataclass(frozen=True)
class Replayed:
    """The text of an earlier generation that is trained on again."""

    number: int  # among the accepted generations, from 0
    version: int  # in the registry
    tokens: dict[str, int]  # training tokens still in each source, estimated from its documents
    whole: bool  # no document is gone


@dataclass(frozen=True)
class Night:
    """The facts beside the recipe that a night's training depends on."""

    new: Tokens  # training tokens of each source of the new text
    vocabulary: int  # size of the tokenizer's vocabulary
    accepted: Sequence[int] = ()  # versions of the generations that were accepted, oldest first
    data_sets: Sequence[Sequence[Replayed]] = ()  # the replayed text: the generations of each data set
    has_champion: bool = False
    execution: str = ""  # id

    def replayed(self) -> list[Tokens]:
        """The tokens of each source in each replayed data set."""
        return [summed([text.tokens for text in texts]) for texts in self.data_sets]


def of_version(part: str, version: int) -> str:
    """The name that calls have for a generation's artifact: `part` is a key of PARTS in tasks/promote/ledger.py."""
    return f"{part} of version {version}"


def found(recipe: ContinuousRecipe, corpus: CorpusSpec, known: Sequence[int]) -> Calls:
    """Find the text of the corpus that none of these versions was made from."""
    dag = Calls()
    ready = prepared(dag, recipe, None, evaluated_names(recipe))
    new_of(dag, corpus, [of_version("corpus", version) for version in known], ready)
    return dag


def tokenized(recipe: ContinuousRecipe, is_first: bool) -> Calls:
    """Tokenize the new text. The tokenizer is that of the first generation."""
    dag = Calls()
    if is_first:
        dag.add("tokenizer", "train_tokenizer", recipe.tokenizer, corpus=NEW_TEXT)
    shards_of(dag, "shards", recipe.shards, NEW_TEXT, "tokenizer")
    return dag


def trained(recipe: ContinuousRecipe, night: Night) -> Calls:
    """Train on the new text mixed with replayed text, and compare the candidate with the champion."""
    dag = Calls()
    data: list[str] = []  # the replayed text
    start: list[str] = []
    resume: list[str] = []
    earlier: dict[str, str] = {}  # what training begins with, by the names of a card's parts
    if night.accepted:
        data = [_data_set(dag, recipe, number, texts) for number, texts in enumerate(night.data_sets, 1)]
        earlier |= {f"shards_{number}": shards for number, shards in enumerate(data, 1)}
        # of generations that are compacted, the card names the shards alone
        alone = {number: texts[0] for number, texts in enumerate(night.data_sets, 1) if len(texts) == 1}
        earlier |= {f"corpus_{number}": of_version("corpus", text.version) for number, text in alone.items()}
        resume = [of_version("checkpoint", night.accepted[-1])]
        known = [of_version("corpus", version) for version in night.accepted]
        old = dag.add("gather", "gather", GatherSpec(train=False), corpora=known, newest=NEW_TEXT)
        corpora = [old, NEW_TEXT]
    else:
        old, corpora = NEW_TEXT, [NEW_TEXT]
        if recipe.init_from:
            earlier["start"] = dag.add("import_hf", "import_hf", recipe.init_from)
            start = ["import_hf"]
    sets = prepared(dag, recipe, old, recipe.evaluate.sets())
    comparison = _Comparison(recipe, recipe.promotion, "promotion", night.has_champion, corpora, sets)

    after = comparison.check_metric(dag)
    first, *more = [*data, "shards"]
    spec = pretraining(recipe, night)
    dag.add("pretrain", "pretrain", spec, after=after, data=first, more=more, start=start, resume=resume)
    dag.add("convert", "convert", recipe.convert, checkpoint="pretrain", tokenizer="tokenizer")
    results = {}
    if recipe.audit:
        results["audit"] = dag.add(
            "audit", "audit", recipe.audit, checkpoint="pretrain", model="convert", data="shards"
        )
    parts = {"corpus": NEW_TEXT, "tokenizer": "tokenizer", "shards": "shards", "pretrain": "pretrain"}
    report = comparison.decide(dag, BASE, "convert")
    dag.add("publish", "publish", recipe.publish, model="convert", models=[], reports=[report], parts=parts | earlier)
    _end(dag, recipe.name, night.execution, "convert", report, parts | results)
    return dag


def refreshed(
    recipe: ContinuousRecipe,
    accepted: Sequence[int],
    newest: int,
    has_champion: bool,
    execution: str = "",
) -> Calls:
    """Post-train the base's champion, whose name is `base`, and compare the last model with the tuned champion.
    `accepted` and `newest` are versions of the base; `has_champion` is true if a tuned model serves."""
    assert recipe.refresh
    dag = Calls()
    known = [of_version("corpus", version) for version in accepted]
    corpus = dag.add("corpus", "gather", GatherSpec(train=True), corpora=known, newest=of_version("corpus", newest))
    prepared_rows = rows_of(dag, recipe, corpus, {})
    sets = decontaminated(dag, recipe, prepared_rows)
    tried = rewards_tried(dag, recipe, sets)
    comparison = _Comparison(recipe, recipe.refresh.promotion, "refresh.promotion", has_champion, [corpus], sets)
    names = {BASE: BASE}  # of the models, by the titles of their calls
    after = comparison.check_metric(dag)
    model = tuned(dag, recipe, BASE, sets, lambda name, title: names.update({title: name}), after)
    parts = {"corpus": corpus} | parts_of(sets, prepared_rows) | custom_parts(dag)
    report = comparison.decide(dag, names[model], model)
    publish = recipe.publish.model_copy(update={"name": recipe.refresh.name})
    dag.add("publish", "publish", publish, model=model, models=[BASE], reports=[report], parts={**parts})
    _end(dag, recipe.refresh.name, execution, model, report, parts | tried)
    return dag


def pretraining(recipe: ContinuousRecipe, night: Night) -> PretrainSpec:
    """The spec of a night's training."""
    if not night.accepted:
        first = recipe.pretraining()
        assert first
        return first
    first = recipe.pretrain.resolved(night.vocabulary, continued=recipe.init_from is not None)
    warm_from = _final_lr(recipe, first.optimizer, len(night.accepted))
    return recipe.grow.pretraining(first, night.new, night.replayed(), source_weights(recipe.corpus), warm_from)


def _final_lr(recipe: ContinuousRecipe, first: OptimizerSpec, generation: int) -> float:
    """The final learning rate of an accepted generation's run, counted from 1."""
    return first.min_lr or 0.0 if generation == 1 else recipe.grow.rates(first)[1]


def _data_set(dag: Calls, recipe: ContinuousRecipe, number: int, texts: Sequence[Replayed]) -> str:
    """The text of some generations that is still in the source, as one data set."""
    shards = [of_version("shards", text.version) for text in texts]
    changed = [of_version("corpus", text.version) for text in texts if not text.whole]
    if len(shards) == 1 and not changed:
        return shards[0]
    newest = [NEW_TEXT] if changed else []
    return dag.add(f"compact-{number}", "compact", recipe.shards, data=shards, corpora=changed, newest=newest)


@dataclass(frozen=True)
class _Comparison:
    """The comparison of a candidate with the champion, on the same held-out text and rows."""

    recipe: ContinuousRecipe
    rule: PromotionSpec
    rule_path: str  # in the recipe
    has_champion: bool
    corpora: list[str]
    sets: dict[str, str]  # of rows, by name

    def evaluate(self, dag: Calls, name: str, model: str) -> str:
        """The evaluation of a model."""
        rows = [self.sets[each] for each in self.recipe.evaluate.sets()]
        spec = self.recipe.evaluate
        return dag.add(EVALUATION + name, "evaluate", spec, model=model, corpora=self.corpora, rows=rows)

    def check_metric(self, dag: Calls) -> list[str]:
        """Check by the champion's evaluation that the rule's metric exists, before anything is trained, if it is one of
        lm-eval's, which are not known before the run."""
        evaluator = self.recipe.evaluate.evaluators().get(self.rule.metric.partition(".")[0])
        if not self.has_champion or evaluator is None or not evaluator.lm_eval:
            return []
        spec = ChooseSpec(metric=self.rule.metric, before_tuning=True, field=f"{self.rule_path}.metric")
        report = self.evaluate(dag, CHAMPION, SERVING)
        return [dag.add("check-metric", "choose", spec, models=[SERVING], reports=[report])]

    def decide(self, dag: Calls, name: str, candidate: str) -> str:
        """Evaluate the candidate, and the champion if it is not evaluated yet, and decide between them. Returns the
        candidate's evaluation."""
        reports = [self.evaluate(dag, name, candidate)]
        if self.has_champion:
            reports.append(EVALUATION + CHAMPION)
            if EVALUATION + CHAMPION not in [call.title for call in dag]:
                self.evaluate(dag, CHAMPION, SERVING)
        dag.add("decide", "decide", self.rule, reports=reports)
        return reports[0]


def _end(dag: Calls, title: str, execution: str, model: str, report: str, parts: dict[str, str]) -> None:
    """Promote the model if that was decided, and report it."""
    dag.add("promote", "promote", PromoteSpec(execution=execution), decision="decide", published="publish")
    described = parts | {"published": "publish", "decision": "decide"}
    spec = ReportSpec(title=title, execution=execution)
    dag.add("report", "report", spec, models=[model], reports=[report], parts=described)
