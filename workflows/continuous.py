"""A model that keeps learning: new text arrives, it trains on, and takes the champion's place if it is better.

    pyflyte run workflows/continuous.py continue_training --recipe workflows/recipes/continuous.yaml
    pyflyte run workflows/continuous.py refresh_rl --recipe workflows/recipes/continuous.yaml

The model registry is the ledger: each version is a generation, and its tags say what it was made of and what became
of it. A run reads it, does what is missing, and commits by the last tag of a new version; a run that died is repeated
from the caches to the same end.

A DAG's shape here depends on what the stages before it made (how much is new, what was decided), so each part is a
dynamic workflow, with what it depends on as inputs.
"""

import json

from flytekit import workflow

import workflows.recipe_file  # noqa: F401 - a broken recipe file ends in a message
from infra.errors import Stopped, disk_errors_named
from infra.progress import say
from infra.text import number, size
from infra.tracking.execution import begin_execution, execution_id, is_last
from tasks.artifacts import Corpus, Decision, HFModel, Promotion, TokenizedCorpus, Tokenizer
from tasks.convert.task import audit, convert, take_in
from tasks.data.spec import GatherSpec
from tasks.data.task import find_new, gather, prune, tokenize, train_tokenizer
from tasks.evaluate.task import evaluate
from tasks.pretrain.task import pretrain
from tasks.promote.spec import PromoteSpec
from tasks.promote.task import decide, promote
from tasks.publish.task import publish
from tasks.report.spec import ReportSpec
from tasks.report.task import report
from workflows.alone import alone
from workflows.continuous_recipe import ContinuousRecipe
from workflows.dag_part import dag_part
from workflows.history import Replayed, champion, generations, part, replayed
from workflows.tuning import prepared, rows_of, tuned


@workflow
def continue_training(recipe: ContinuousRecipe) -> str:
    """What is new in the source → train on → convert → compare with the champion → promote, if it is better."""
    told: str = look(recipe=recipe)
    return told


@workflow
def refresh_rl(recipe: ContinuousRecipe) -> str:
    """The champion → post-training → compare with the tuned champion → promote, if it is better."""
    told: str = tune(recipe=recipe)
    return told


@dag_part
def look(recipe: ContinuousRecipe) -> str:
    """Find the new text, and go on with it, alone."""
    begin_execution(recipe.name, recipe.model_dump(mode="json"))
    name = _name(recipe)
    with disk_errors_named(), alone(name, recipe.grow.on_overlap) as free:
        if not free:
            return _over(f"{name}: skipped, another run is at work on it")
        known = [part(each, "corpus") for each in generations(name)]
        newest = find_new(spec=recipe.corpus.as_found(ask_hub=True), known=known)
        told: str = grow(recipe=recipe, newest=newest)
        return told


@dag_part
def grow(recipe: ContinuousRecipe, newest: Corpus) -> str:
    """Tokenize what is new, if it is enough."""
    before = generations(_name(recipe))
    say(_changes(newest))
    if not newest.documents or newest.bytes < recipe.grow.smallest:
        if not before:
            raise Stopped("corpus: there is no text to begin with; give the source some documents")
        enough = f", and less than grow.smallest ({size(recipe.grow.smallest)})" if newest.documents else ""
        return _refreshed(
            recipe, f"{_name(recipe)}: nothing to do: {size(newest.bytes)} of new text to train on{enough}"
        )
    if before:
        tokenizer = part(before[0], "tokenizer")
    else:
        tokenizer = train_tokenizer(spec=recipe.tokenizer.as_found(), corpus=newest)
    shards = tokenize(spec=recipe.shards, corpus=newest, tokenizer=tokenizer)
    told: str = train(recipe=recipe, newest=newest, tokenizer=tokenizer, shards=shards)
    return told


@dag_part
def train(recipe: ContinuousRecipe, newest: Corpus, tokenizer: Tokenizer, shards: TokenizedCorpus) -> str:
    """Train on what is new beside some of the old, and let the candidate meet the champion."""
    before = generations(_name(recipe))
    accepted = [each for each in before if each.accepted]
    if accepted:
        old = replayed(accepted, newest)
        spec = recipe.grow.pretraining(
            recipe.pretrain, shards.tokens, [each.tokens for each in old], _rate_at_the_end(recipe, len(accepted))
        )
        first, *more = [*(_still_there(each, newest, recipe) for each in old), shards]
        latest = part(accepted[-1], "checkpoint")
        checkpoint = pretrain(spec=spec, data=first, more=more, start=[], resume=[latest])
        corpora = [part(each, "corpus") for each in accepted]
        held_out, new = gather(spec=GatherSpec(train=False), corpora=corpora, newest=newest), [newest]
    else:
        start = [take_in(spec=recipe.init_from.as_found())] if recipe.init_from else []
        checkpoint = pretrain(spec=recipe.pretrain, data=shards, more=[], start=start, resume=[])
        held_out, new = newest, []
    model = convert(spec=recipe.convert, checkpoint=checkpoint, tokenizer=tokenizer)
    proof = audit(spec=recipe.audit, checkpoint=checkpoint, model=model, data=shards) if recipe.audit else None

    sets = prepared(recipe, held_out, recipe.evaluate.sets())
    asked = [sets[name] for name in recipe.evaluate.sets()]
    reports = [
        evaluate(spec=recipe.evaluate.as_found(), model=each, corpora=[held_out, *new], rows=asked)
        for each in [model, *champion(_name(recipe))]
    ]
    decision = decide(spec=recipe.promotion, reports=reports)
    published = publish(
        spec=recipe.publish,
        model=model,
        reports=reports[:1],
        models=[],
        more_corpora=[],
        corpus=newest,
        checkpoint=checkpoint,
        shards=shards,
        tokenizer=tokenizer,
    )
    promoted = promote(spec=PromoteSpec(execution=execution_id()), decision=decision, published=published)
    report(
        spec=ReportSpec(title=recipe.name, execution=execution_id()),
        corpus=newest,
        models=[model],
        reports=reports[:1],
        tokenizer=tokenizer,
        shards=shards,
        checkpoint=checkpoint,
        audit=proof,
        published=published,
        decision=decision,
    )
    told: str = after(recipe=recipe, decision=decision, promoted=promoted)
    return told


@dag_part
def after(recipe: ContinuousRecipe, decision: Decision, promoted: Promotion) -> str:
    """Say how it ended; tune anew when the base has changed."""
    told = f"{promoted.registry_name} version {promoted.registry_version}: {_words(decision)}"
    return _refreshed(recipe, told) if decision.outcome == "promoted" else _over(told)


@dag_part
def tune(recipe: ContinuousRecipe) -> str:
    """The post-training of the champion, if it has not been tuned yet; the last model meets the tuned champion."""
    if recipe.refresh is None:
        raise Stopped("refresh: is off in this recipe; add `refresh: {name: …}` and `post_training`")
    begin_execution(recipe.name, recipe.model_dump(mode="json"))
    name = recipe.refresh.name
    with disk_errors_named(), alone(name, recipe.grow.on_overlap) as free:
        if not free:
            return _over(f"{name}: skipped, another run is at work on it")
        tuned = generations(name)
        base = next(iter(champion(_name(recipe))), None)
        if base is None:
            return _over(f"{name}: nothing to do: {_name(recipe)} has no champion yet")
        if any(each.part("from_base").digest == base.digest for each in tuned):
            return _over(f"{name}: nothing to do: the champion of {_name(recipe)} has been tuned")
        told: str = tune_anew(recipe=recipe, base=base)
        return told


@dag_part
def tune_anew(recipe: ContinuousRecipe, base: HFModel) -> str:
    """The post-training of `base`."""
    assert recipe.refresh
    known = generations(_name(recipe))
    corpora = [part(each, "corpus") for each in known if each.accepted]
    corpus = gather(spec=GatherSpec(train=True), corpora=corpora, newest=part(known[-1], "corpus"))
    sets = rows_of(recipe, corpus)
    *_, model = tuned(recipe, base, sets)
    asked = [sets[name] for name in recipe.evaluate.sets()]
    reports = [
        evaluate(spec=recipe.evaluate.as_found(), model=each, corpora=[corpus], rows=asked)
        for each in [model, *champion(recipe.refresh.name)]
    ]
    decision = decide(spec=recipe.refresh.promotion, reports=reports)
    spec = recipe.publish.model_copy(update={"name": recipe.refresh.name})
    published = publish(spec=spec, model=model, reports=reports[:1], models=[base], more_corpora=[], corpus=corpus)
    promoted = promote(spec=PromoteSpec(execution=execution_id()), decision=decision, published=published)
    report(
        spec=ReportSpec(title=recipe.refresh.name, execution=execution_id()),
        corpus=corpus,
        models=[model],
        reports=reports[:1],
        published=published,
        decision=decision,
    )
    told: str = told_of(decision=decision, promoted=promoted)
    return told


@dag_part
def told_of(decision: Decision, promoted: Promotion) -> str:
    return _over(f"{promoted.registry_name} version {promoted.registry_version}: {_words(decision)}")


def _over(told: str) -> str:
    """Nothing comes after this."""
    is_last()
    return told


def _refreshed(recipe: ContinuousRecipe, told: str) -> str:
    """Tune the champion if the recipe says so and that is not done: after a promotion, and on a day without one
    when the tuning after it was cut off."""
    if recipe.refresh is None:
        return _over(told)
    say(told)
    tuned: str = tune(recipe=recipe)
    return tuned


def _name(recipe: ContinuousRecipe) -> str:
    """The base's name in the registry."""
    return recipe.publish.name


def _still_there(old: Replayed, newest: Corpus, recipe: ContinuousRecipe) -> TokenizedCorpus:
    if old.whole:
        return old.shards
    return prune(spec=recipe.shards, data=old.shards, corpus=old.corpus, newest=newest)


def _rate_at_the_end(recipe: ContinuousRecipe, generation: int) -> float:
    """The learning rate that the run of the newest accepted of so many ended at."""
    return recipe.pretrain.optimizer.min_lr if generation == 1 else recipe.grow.min_lr


def _changes(newest: Corpus) -> str:
    found = {"new": newest.documents + newest.held_out_documents - newest.edited, "edited": newest.edited}
    found |= {"renamed": newest.renamed, "deleted": newest.deleted}
    return f"documents: {', '.join(f'{number(many)} {name}' for name, many in found.items())}"


def _words(decision: Decision) -> str:
    return str(json.loads((decision.local() / "decision.json").read_text())["words"])
