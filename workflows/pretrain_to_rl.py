"""From raw text to a GRPO-tuned, evaluated and published model.

    pyflyte run workflows/pretrain_to_rl.py pretrain_to_rl --recipe workflows/recipes/laptop.yaml

`stages` is a dynamic workflow, so the DAG has exactly the recipe's stages, and no empty node for one that is off. `dag`
is the same without the tracking record, to inspect a DAG before it runs (workflows/plan.py).
"""

from flytekit import workflow

import workflows.recipe_file  # noqa: F401 - reports problems of a recipe file
from infra.errors import disk_errors_named
from infra.tracking.execution import execution_id
from tasks.artifacts import Artifact, EvalReport, HFModel, Report, TokenizedCorpus
from tasks.choose.spec import ChooseSpec
from tasks.choose.task import choose
from tasks.convert.task import audit, convert, import_hf, load_hf
from tasks.data.task import train_tokenizer
from tasks.evaluate.task import evaluate
from tasks.pretrain.task import pretrain
from tasks.publish.task import publish
from tasks.report.spec import ReportSpec
from tasks.report.task import report
from tasks.serve.task import serve
from workflows.corpora import corpus_of, evaluated_first, shards_of
from workflows.dynamic_part import dag_part
from workflows.recipe import Recipe
from workflows.recorded import begin
from workflows.stage_titles import stage_titles
from workflows.tuning import kept_apart, parts_of, rewards_tried, rows_of, tuned


def dag(recipe: Recipe) -> Report:
    """The recipe's stages, in order."""
    corpus = tokenizer = shards = checkpoint = model = None
    sources: dict[str, Artifact] = {}  # what the models are made of
    results: dict[str, Artifact] = {}  # what is told of them
    more_shards: list[TokenizedCorpus] = []
    models: list[HFModel] = []
    reports: list[EvalReport] = []

    ready = evaluated_first(recipe)
    if recipe.corpus:
        sources["corpus"] = corpus = corpus_of(recipe.corpus, ready)
    whole = rows_of(recipe, corpus, ready)  # so that invalid rows are found before training
    rows = kept_apart(recipe, whole)
    sources |= parts_of(rows, whole)
    results |= rewards_tried(recipe, rows)  # before anything is trained with them
    more_corpora = [corpus_of(spec, ready) for spec in recipe.more_corpora]
    sources |= {f"corpus_{number}": other for number, other in enumerate(more_corpora, 2)}
    if recipe.tokenizer:
        sources["tokenizer"] = tokenizer = train_tokenizer(spec=recipe.tokenizer.as_found(), corpus=corpus)
    if recipe.shards:
        assert corpus is not None and tokenizer is not None  # preflight.py refuses a recipe without them
        sources["shards"] = shards = shards_of(recipe.shards, corpus, tokenizer)
        more_shards = [shards_of(recipe.shards, other, tokenizer) for other in more_corpora]
        sources |= {f"shards_{number}": other for number, other in enumerate(more_shards, 2)}
    if recipe.pretrain:
        start = [import_hf(spec=recipe.init_from.as_found())] if recipe.init_from else []
        sources |= dict(zip(["init_from"], start, strict=False))
        checkpoint = pretrain(spec=recipe.pretraining(), data=shards, more=more_shards, start=start, resume=[])
        sources["pretrain"] = checkpoint

    def keep(model: HFModel) -> HFModel:
        """Evaluate each model as soon as it exists."""
        models.append(model)
        if recipe.evaluate:
            corpora = [corpus] if recipe.evaluate.bits_per_byte else []
            sets = [rows[name] for name in recipe.evaluate.sets()]
            reports.append(evaluate(spec=recipe.evaluate.as_found(), model=model, corpora=corpora, rows=sets))
        return model

    if recipe.convert:
        model = convert(spec=recipe.convert, checkpoint=checkpoint, tokenizer=tokenizer)
        if recipe.audit:
            results["audit"] = audit(spec=recipe.audit, checkpoint=checkpoint, model=model, data=shards)
        model = keep(model)
    if recipe.start_from:
        model = keep(load_hf(spec=recipe.start_from.as_found()))
    post_trained = [keep(tuned_model) for tuned_model in tuned(recipe, model, rows)] if model is not None else []
    if post_trained:
        model = post_trained[len(recipe.post_training) - 1]  # the last stage's, with the first seed

    if recipe.publish and recipe.publish.best:
        model = choose(spec=ChooseSpec(metric=recipe.publish.best), models=models, reports=reports)
    if recipe.serve:
        results["endpoint"] = serve(spec=recipe.serve, model=model)
    if recipe.publish:
        results["published"] = publish(spec=recipe.publish, model=model, models=models, reports=reports, parts=sources)
    spec = ReportSpec(title=recipe.name, execution=execution_id())
    return report(spec=spec, models=models, reports=reports, parts=sources | results)


@dag_part
def stages(recipe: Recipe) -> Report:
    recipe = begin(recipe, stage_titles(recipe))
    with disk_errors_named():
        return dag(recipe)


@workflow
def pretrain_to_rl(recipe: Recipe) -> Report:
    """Raw text → tokenizer → pretrain → convert → SFT → DPO → GRPO → publish, evaluated throughout."""
    result: Report = stages(recipe=recipe)
    return result
