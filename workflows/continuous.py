"""Continuous training: train on new text, and replace the champion if the new model is better.

    pyflyte run workflows/continuous.py continue_training --recipe workflows/recipes/continuous.yaml
    pyflyte run workflows/continuous.py refresh_rl --recipe workflows/recipes/continuous.yaml

The model registry is the ledger: each version is a generation, and its tags record its inputs and its outcome. A run
reads the ledger, does what is missing, and commits with the last tag of a new version. After a crash, the same command
repeats the run from the caches with the same result.

The DAG's shape depends on earlier results (how much text is new, what was decided), so each part is a dynamic workflow
that takes those results as inputs.
"""

import json
from functools import partial

from flytekit import workflow

import workflows.recipe.file  # noqa: F401 - reports problems of a recipe file
from infra.errors import UserError
from infra.progress import say
from infra.storage.disk_errors import disk_errors_named
from infra.text import number, size
from infra.tracking.execution import execution_id, mark_last
from tasks.artifacts import Artifact
from tasks.convert.task import audit, convert, import_hf
from tasks.core.called import Called
from tasks.data.artifact import Corpus, TokenizedCorpus, Tokenizer
from tasks.data.spec import GatherSpec
from tasks.data.task import compact, gather, train_tokenizer
from tasks.evaluate.artifact import EvalReport
from tasks.evaluate.task import evaluate
from tasks.models.artifact import HFModel
from tasks.pretrain.optimizer_spec import OptimizerSpec
from tasks.pretrain.task import pretrain
from tasks.promote.artifact import Decision, Promotion
from tasks.promote.spec import PromoteSpec
from tasks.promote.task import decide, promote
from tasks.publish.task import publish
from tasks.report.spec import ReportSpec
from tasks.report.task import report
from tasks.rows.artifact import Rows
from workflows.continuous_training.generations import (
    Replayed,
    champion,
    corpora_of,
    data_sets,
    generations,
    part,
    replayed,
    tokens_of,
)
from workflows.continuous_training.lock import exclusive
from workflows.continuous_training.recipe import ContinuousRecipe
from workflows.continuous_training.replay import source_weights, summed, unweighted
from workflows.dag.call import Calls
from workflows.dag.corpora import evaluated_names, new_of, shards_of
from workflows.dag.dynamic_part import dag_part
from workflows.dag.post_training import BASE
from workflows.dag.recorded import begin
from workflows.dag.tuning import custom_parts, kept_apart, parts_of, prepared, rewards_tried, rows_of, tuned
from workflows.dag.walk import walk


@workflow
def continue_training(recipe: ContinuousRecipe) -> str:
    """New text → continue pretraining → convert → compare with the champion → promote if better."""
    message: str = ingest(recipe=recipe)
    return message


@workflow
def refresh_rl(recipe: ContinuousRecipe) -> str:
    """Champion → post-training → compare with the tuned champion → promote if better."""
    message: str = refresh(recipe=recipe)
    return message


@dag_part
def ingest(recipe: ContinuousRecipe) -> str:
    """Find the new text and continue with it, while holding the model's lock."""
    recipe = begin(recipe)
    name = _name(recipe)
    with disk_errors_named(), exclusive(name, recipe.grow.on_overlap) as acquired:
        if not acquired:
            return _end(f"{name}: skipped, another run is at work on it")
        given = {f"corpus-{number}": corpus for number, corpus in enumerate(corpora_of(generations(name)))}
        dag, names, corpus = Calls(), evaluated_names(recipe), recipe.corpus.pinned(ask_hub=True)
        newest = new_of(dag, corpus, [*given], prepared(dag, _resolved(recipe), None, names) if names else {})
        message: str = grow(recipe=recipe, newest=walk(dag, given)[newest])
        return message


@dag_part
def grow(recipe: ContinuousRecipe, newest: Corpus) -> str:
    """Tokenize the new text, if there is enough."""
    before = generations(_name(recipe))
    say(_changes(newest))
    if not newest.documents or newest.bytes < recipe.grow.min_bytes:
        if not before:
            raise UserError("corpus: the source has no text for the first generation; add documents to it")
        enough = f", and less than grow.min_bytes ({size(recipe.grow.min_bytes)})" if newest.documents else ""
        return _refresh_if_due(
            recipe, f"{_name(recipe)}: nothing to do: {size(newest.bytes)} of new text to train on{enough}"
        )
    if before:
        tokenizer = part(before[0], "tokenizer")
    else:
        tokenizer = train_tokenizer(spec=recipe.tokenizer.pinned(), corpus=newest)
    dag = Calls()
    title = shards_of(dag, "shards", recipe.shards, "corpus", "tokenizer")
    shards = walk(dag, {"corpus": newest, "tokenizer": tokenizer})[title]
    message: str = train(recipe=recipe, newest=newest, tokenizer=tokenizer, shards=shards)
    return message


@dag_part
def train(recipe: ContinuousRecipe, newest: Corpus, tokenizer: Tokenizer, shards: TokenizedCorpus) -> str:
    """Train on the new text mixed with replayed text, and compare the candidate with the champion."""
    before = generations(_name(recipe))
    accepted = [generation for generation in before if generation.accepted]
    earlier: dict[str, Artifact] = {}  # text that is trained on again, and initial weights
    if accepted:
        old = replayed(accepted, newest)
        together = data_sets(old, len(accepted), recipe.grow.compact)
        vocabulary = recipe.pretrain.model.vocab_size or shards.vocab_size
        old_tokens = [summed([text.tokens for text in texts]) for texts in together]
        weights = source_weights(recipe.corpus)
        if without := unweighted(old_tokens, weights):
            say(f"warning: replayed by its size, for want of a weight in corpus.sources: {', '.join(without)}")
        first_run = recipe.pretrain.resolved(vocabulary, continued=recipe.init_from is not None)
        spec = recipe.grow.pretraining(
            first_run,
            tokens_of(shards),
            old_tokens,
            weights,
            _final_lr(recipe, first_run.optimizer, len(accepted)),
        )
        first, *more = [*(_data_set(texts, newest, recipe) for texts in together), shards]
        latest = part(accepted[-1], "checkpoint")
        aside = ", ".join(str(each.version) for each in before if each.rolled_back)
        say(f"training continues from version {accepted[-1].version}" + (f"; set aside: {aside}" if aside else ""))
        checkpoint = pretrain(spec=spec, data=first, more=more, start=[], resume=[latest])
        earlier |= {f"shards_{number}": one for number, one in enumerate([first, *more[:-1]], 1)}
        # of generations that are compacted, the card names the shards alone
        alone = {number: texts[0].corpus for number, texts in enumerate(together, 1) if len(texts) == 1}
        earlier |= {f"corpus_{number}": corpus for number, corpus in alone.items()}
        held_out = gather(spec=GatherSpec(train=False), corpora=corpora_of(accepted), newest=newest)
        new = [newest]
    else:
        start = [import_hf(spec=recipe.init_from.pinned())] if recipe.init_from else []
        checkpoint = pretrain(spec=recipe.pretraining(), data=shards, more=[], start=start, resume=[])
        earlier |= dict(zip(["start"], start, strict=False))
        held_out, new = newest, []
    model = convert(spec=recipe.convert, checkpoint=checkpoint, tokenizer=tokenizer)
    parts = {"corpus": newest, "tokenizer": tokenizer, "shards": shards, "pretrain": checkpoint}
    results: dict[str, Artifact] = {}
    if recipe.audit:
        results["audit"] = audit(spec=recipe.audit, checkpoint=checkpoint, model=model, data=shards)

    dag = Calls()
    sets = prepared(dag, _resolved(recipe), "held_out", recipe.evaluate.sets())
    artifacts = walk(dag, {"held_out": held_out})
    rows = [artifacts[sets[name]] for name in recipe.evaluate.sets()]
    reports = _evaluated(recipe, model, _name(recipe), [held_out, *new], rows)
    decision = decide(spec=recipe.promotion, reports=reports)
    published = publish(spec=recipe.publish, model=model, models=[], reports=reports[:1], parts=parts | earlier)
    promoted = promote(spec=PromoteSpec(execution=execution_id()), decision=decision, published=published)
    results |= {"published": published, "decision": decision}
    report(
        spec=ReportSpec(title=recipe.name, execution=execution_id()),
        models=[model],
        reports=reports[:1],
        parts=parts | results,
    )
    message: str = conclude(recipe=recipe, decision=decision, promoted=promoted)
    return message


@dag_part
def conclude(recipe: ContinuousRecipe, decision: Decision, promoted: Promotion) -> str:
    """Report the outcome; refresh the tuned model if the base has changed."""
    message = f"{promoted.registry_name} version {promoted.registry_version}: {_verdict(decision)}"
    return _refresh_if_due(recipe, message) if decision.outcome == "promoted" else _end(message)


@dag_part
def refresh(recipe: ContinuousRecipe) -> str:
    """Begin with the refresh."""
    return _refreshed(begin(recipe))


@dag_part
def refresh_promoted(recipe: ContinuousRecipe) -> str:
    """The refresh that follows a promotion, in the same execution."""
    return _refreshed(recipe)


def _refreshed(recipe: ContinuousRecipe) -> str:
    """Post-train the champion if it has not been tuned yet, and compare the last model with the tuned champion."""
    if recipe.refresh is None:
        raise UserError("refresh: is off in this recipe; add `refresh: {name: …}` and `post_training`")
    name = recipe.refresh.name
    with disk_errors_named(), exclusive(name, recipe.grow.on_overlap) as acquired:
        if not acquired:
            return _end(f"{name}: skipped, another run is at work on it")
        tuned = generations(name)
        base = next(iter(champion(_name(recipe))), None)
        if base is None:
            return _end(f"{name}: nothing to do: {_name(recipe)} has no champion yet")
        if any(generation.part("from_base").digest == base.digest for generation in tuned):
            return _end(f"{name}: nothing to do: the champion of {_name(recipe)} has been tuned")
        message: str = tune_champion(recipe=recipe, base=base)
        return message


@dag_part
def tune_champion(recipe: ContinuousRecipe, base: HFModel) -> str:
    """Post-train `base`."""
    assert recipe.refresh
    known = generations(_name(recipe))
    corpora = corpora_of([generation for generation in known if generation.accepted])
    corpus = gather(spec=GatherSpec(train=True), corpora=corpora, newest=part(known[-1], "corpus"))
    resolved, dag = _resolved(recipe), Calls()
    whole = rows_of(dag, resolved, "corpus", {})
    sets = kept_apart(dag, resolved, whole)
    tried = rewards_tried(dag, resolved, sets)
    last = tuned(dag, resolved, BASE, sets)
    artifacts = walk(dag, {"corpus": corpus, BASE: base})
    model = artifacts[last]
    rows = [artifacts[sets[name]] for name in recipe.evaluate.sets()]
    reports = _evaluated(recipe, model, recipe.refresh.name, [corpus], rows)
    decision = decide(spec=recipe.refresh.promotion, reports=reports)
    spec = recipe.publish.model_copy(update={"name": recipe.refresh.name})
    titles = parts_of(sets, whole) | custom_parts(dag)
    parts = {"corpus": corpus} | {name: artifacts[title] for name, title in titles.items()}
    results = {name: artifacts[title] for name, title in tried.items()}
    published = publish(spec=spec, model=model, models=[base], reports=reports[:1], parts=parts)
    promoted = promote(spec=PromoteSpec(execution=execution_id()), decision=decision, published=published)
    report(
        spec=ReportSpec(title=recipe.refresh.name, execution=execution_id()),
        models=[model],
        reports=reports[:1],
        parts=parts | {"published": published, "decision": decision} | results,
    )
    message: str = conclude_refresh(decision=decision, promoted=promoted)
    return message


@dag_part
def conclude_refresh(decision: Decision, promoted: Promotion) -> str:
    return _end(f"{promoted.registry_name} version {promoted.registry_version}: {_verdict(decision)}")


def _resolved(recipe: ContinuousRecipe) -> ContinuousRecipe:
    """The recipe with the present state of the files that it names, except the corpus's, which `ingest` looks up."""
    others = recipe.model_copy(update={"corpus": None}).pinned()
    return others.model_copy(update={"corpus": recipe.corpus})


def _end(message: str) -> str:
    """End the execution with this message."""
    mark_last()
    return message


def _refresh_if_due(recipe: ContinuousRecipe, message: str) -> str:
    """Tune the champion if the recipe has a `refresh` and the champion is not tuned yet: after a promotion, or later
    if that refresh was interrupted."""
    if recipe.refresh is None:
        return _end(message)
    say(message)
    tuned: str = refresh_promoted(recipe=recipe)
    return tuned


def _name(recipe: ContinuousRecipe) -> str:
    """The base's name in the registry."""
    return recipe.publish.name


def _evaluated(
    recipe: ContinuousRecipe, model: HFModel, name: str, corpora: list[Corpus], rows: list[Rows]
) -> list[EvalReport]:
    """The evaluations of a candidate and of the champion of that name, if there is one."""
    measured = partial(evaluate, spec=recipe.evaluate.pinned(), corpora=corpora, rows=rows)
    title = Called("evaluate-champion").how()  # both models have the same label
    return [measured(model=model), *(measured(model=each, how=title) for each in champion(name))]


def _data_set(texts: list[Replayed], newest: Corpus, recipe: ContinuousRecipe) -> TokenizedCorpus:
    """What remains of some generations' text, as one data set."""
    changed = [text.corpus for text in texts if not text.whole]
    if len(texts) == 1 and not changed:
        return texts[0].shards
    data = [text.shards for text in texts]
    return compact(spec=recipe.shards, data=data, corpora=changed, newest=[newest] if changed else [])


def _final_lr(recipe: ContinuousRecipe, first: OptimizerSpec, generation: int) -> float:
    """The final learning rate of an accepted generation's run, counted from 1."""
    return first.min_lr or 0.0 if generation == 1 else recipe.grow.rates(first)[1]


def _changes(newest: Corpus) -> str:
    counts = {"new": newest.documents + newest.held_out_documents - newest.edited, "edited": newest.edited}
    counts |= {"renamed": newest.renamed, "deleted": newest.deleted}
    return f"documents: {', '.join(f'{number(many)} {name}' for name, many in counts.items())}"


def _verdict(decision: Decision) -> str:
    return str(json.loads((decision.local() / "decision.json").read_text())["words"])
