"""From raw text to a GRPO-tuned, evaluated and published model.

    pyflyte run workflows/pretrain_to_rl.py pretrain_to_rl --recipe workflows/recipes/laptop.yaml

The recipe says which stages there are. `stages` is a dynamic workflow, so that the DAG has exactly
those: a stage that is off is not a node that does nothing. `dag` is what it does beside keeping its
record, so that the same DAG can be looked at before it is run (workflows/plan.py).
"""

from flytekit import workflow

import workflows.recipe_file  # noqa: F401 - a broken recipe file ends in a message
from infra.errors import disk_errors_named
from infra.tracking.execution import begin_execution, execution_id
from tasks.artifacts import EvalReport, HFModel, Report, TokenizedCorpus
from tasks.choose.spec import ChooseSpec
from tasks.choose.task import choose
from tasks.convert.task import adopt, audit, convert, take_in
from tasks.data.task import prepare_corpus, tokenize, train_tokenizer
from tasks.evaluate.task import evaluate
from tasks.pretrain.task import pretrain
from tasks.publish.task import publish
from tasks.report.spec import ReportSpec
from tasks.report.task import report
from tasks.serve.task import serve
from workflows.dag_part import dag_part
from workflows.recipe import Recipe
from workflows.tuning import rows_of, tuned


def dag(recipe: Recipe) -> Report:
    """The stages that the recipe asks for, in their order."""
    corpus = tokenizer = shards = checkpoint = model = proof = published = endpoint = None
    more_shards: list[TokenizedCorpus] = []
    models: list[HFModel] = []
    reports: list[EvalReport] = []

    if recipe.corpus:
        corpus = prepare_corpus(spec=recipe.corpus.as_found())
    rows = rows_of(recipe, corpus)  # faulty rows are found before anything is trained
    more_corpora = [prepare_corpus(spec=each.as_found()) for each in recipe.more_corpora]
    if recipe.tokenizer:
        tokenizer = train_tokenizer(spec=recipe.tokenizer.as_found(), corpus=corpus)
    if recipe.shards:
        shards = tokenize(spec=recipe.shards, corpus=corpus, tokenizer=tokenizer)
        more_shards = [tokenize(spec=recipe.shards, corpus=each, tokenizer=tokenizer) for each in more_corpora]
    if recipe.pretrain:
        start = [take_in(spec=recipe.init_from.as_found())] if recipe.init_from else []
        checkpoint = pretrain(spec=recipe.pretrain, data=shards, more=more_shards, start=start, resume=[])

    def keep(model: HFModel) -> HFModel:
        """Evaluate each model as soon as it is there."""
        models.append(model)
        if recipe.evaluate:
            measured = [corpus] if recipe.evaluate.bits_per_byte else []
            asked = [rows[name] for name in recipe.evaluate.sets()]
            reports.append(evaluate(spec=recipe.evaluate.as_found(), model=model, corpora=measured, rows=asked))
        return model

    if recipe.convert:
        model = convert(spec=recipe.convert, checkpoint=checkpoint, tokenizer=tokenizer)
        if recipe.audit:
            proof = audit(spec=recipe.audit, checkpoint=checkpoint, model=model, data=shards)
        model = keep(model)
    if recipe.start_from:
        model = keep(adopt(spec=recipe.start_from.as_found()))
    made = [keep(each) for each in tuned(recipe, model, rows)] if model is not None else []
    if made:
        model = made[len(recipe.post_training) - 1]  # the last one, of the first seed

    if recipe.publish and recipe.publish.best:
        model = choose(spec=ChooseSpec(metric=recipe.publish.best), models=models, reports=reports)
    if recipe.serve:
        endpoint = serve(spec=recipe.serve, model=model)
    if recipe.publish:
        published = publish(
            spec=recipe.publish,
            model=model,
            reports=reports,
            models=models,
            corpus=corpus,
            checkpoint=checkpoint,
            more_corpora=more_corpora,
            shards=shards,
            tokenizer=tokenizer,
        )
    return report(
        spec=ReportSpec(title=recipe.name, execution=execution_id()),
        corpus=corpus,
        rows=list(rows.values()),
        models=models,
        reports=reports,
        tokenizer=tokenizer,
        shards=shards,
        checkpoint=checkpoint,
        audit=proof,
        endpoint=endpoint,
        published=published,
        more_corpora=more_corpora,
        more_shards=more_shards,
    )


@dag_part
def stages(recipe: Recipe) -> Report:
    begin_execution(recipe.name, recipe.model_dump(mode="json"))
    with disk_errors_named():
        return dag(recipe)


@workflow
def pretrain_to_rl(recipe: Recipe) -> Report:
    """Raw text → tokenizer → pretrain → convert → SFT → DPO → GRPO → publish, evaluated throughout."""
    made: Report = stages(recipe=recipe)
    return made
