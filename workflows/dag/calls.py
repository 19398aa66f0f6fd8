"""The DAG of a recipe as data.

    calls(recipe)      [Call(title="corpus", stage="prepare_corpus", spec=CorpusSpec(…), inputs={}), …]

Its stages in order, each with its spec and with the titles of the stages whose outputs it gets. Nothing is looked up or
run here: Flyte's workflow (walk.py), the plan (plan/dry_run.py) and the lineage page walk this list.
"""

from baton.tasks.choose.spec import ChooseSpec
from baton.tasks.report.spec import ReportSpec
from baton.workflows.dag.call import Calls
from baton.workflows.dag.corpora import corpus_of, evaluated_names, shards_of
from baton.workflows.dag.custom_stages import EVALUATION
from baton.workflows.dag.post_training import BASE
from baton.workflows.dag.tuning import custom_parts, decontaminated, parts_of, prepared, rewards_tried, rows_of, tuned
from baton.workflows.recipe import Recipe


def calls(recipe: Recipe, execution: str = "") -> Calls:
    """The stages of the recipe. `execution`: the id of the one whose report it makes."""
    dag = Calls()
    sources: dict[str, str] = {}  # what the models are made of, by the names of a report's parts
    results: dict[str, str] = {}  # what is reported of them
    models: dict[str, str] = {}  # by their names
    reports: list[str] = []
    corpus = shards = model = ""

    ready = prepared(dag, recipe, None, evaluated_names(recipe))
    if recipe.corpus:
        sources["corpus"] = corpus = corpus_of(dag, "corpus", recipe.corpus, ready)
    prepared_rows = rows_of(dag, recipe, corpus, ready)  # so that invalid rows are found before training
    rows = decontaminated(dag, recipe, prepared_rows)
    sources |= parts_of(rows, prepared_rows)
    results |= rewards_tried(dag, recipe, rows)  # before anything is trained with them
    more_corpora = [
        corpus_of(dag, f"corpus-{number}", spec, ready) for number, spec in enumerate(recipe.more_corpora, 2)
    ]
    sources |= {f"corpus_{number}": title for number, title in enumerate(more_corpora, 2)}
    if recipe.tokenizer:
        sources["tokenizer"] = dag.add("tokenizer", "train_tokenizer", recipe.tokenizer, corpus=corpus)
    more_shards: list[str] = []
    if recipe.shards:
        tokenizer = sources["tokenizer"]  # the check `order` refuses a recipe without it
        sources["shards"] = shards = shards_of(dag, "shards", recipe.shards, corpus, tokenizer)
        for number, other in enumerate(more_corpora, 2):
            more_shards.append(shards_of(dag, f"shards-{number}", recipe.shards, other, tokenizer))
        sources |= {f"shards_{number}": title for number, title in enumerate(more_shards, 2)}
    if spec := recipe.pretraining():
        start = []
        if recipe.init_from:
            sources["init_from"] = dag.add("import_hf", "import_hf", recipe.init_from)
            start = ["import_hf"]
        sources["pretrain"] = dag.add(
            "pretrain", "pretrain", spec, data=shards, more=more_shards, start=start, resume=[]
        )

    def add_model(name: str, title: str) -> str:
        """Register a model and evaluate it as soon as it exists."""
        models[name] = title
        if recipe.evaluate:
            corpora = [corpus] if recipe.evaluate.bits_per_byte else []
            sets = [rows[each] for each in recipe.evaluate.sets()]
            evaluation = dag.add(
                EVALUATION + name, "evaluate", recipe.evaluate, model=title, corpora=corpora, rows=sets
            )
            reports.append(evaluation)
        return title

    if recipe.convert:
        trained, tokenizer = sources["pretrain"], sources["tokenizer"]
        model = dag.add("convert", "convert", recipe.convert, checkpoint=trained, tokenizer=tokenizer)
        if recipe.audit:
            results["audit"] = dag.add("audit", "audit", recipe.audit, checkpoint=trained, model=model, data=shards)
        add_model(BASE, model)
    if recipe.start_from:
        model = add_model(BASE, dag.add("load_hf", "load_hf", recipe.start_from))
    model = tuned(dag, recipe, model, rows, add_model, after=_metric_checked(dag, recipe, models, reports))
    sources |= custom_parts(dag)

    every = [*models.values()]
    if recipe.publish and recipe.publish.best:
        model = dag.add("choose", "choose", ChooseSpec(metric=recipe.publish.best), models=every, reports=reports)
    if recipe.serve:
        results["endpoint"] = dag.add("serve", "serve", recipe.serve, model=model)
    if recipe.publish:
        results["published"] = dag.add(
            "publish", "publish", recipe.publish, model=model, models=every, reports=reports, parts={**sources}
        )
    report = ReportSpec(title=recipe.name, execution=execution)
    dag.add("report", "report", report, models=every, reports=reports, parts=sources | results)
    return dag


def _metric_checked(dag: Calls, recipe: Recipe, models: dict[str, str], reports: list[str]) -> list[str]:
    """The check that `publish.best` is a metric of the base model's evaluation, for one of lm-eval's tasks: the others
    are known before the run."""
    best, tunes = recipe.publish and recipe.publish.best, recipe.post_training or recipe.stages
    if not (best and tunes and reports and recipe.evaluate) or best in recipe.evaluate.metrics():
        return []
    spec = ChooseSpec(metric=best, before_tuning=True)
    return [dag.add("check-best", "choose", spec, models=[*models.values()], reports=[*reports])]
