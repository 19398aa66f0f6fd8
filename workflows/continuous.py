"""Continuous training: train on new text, and replace the champion if the new model is better.

    pyflyte run workflows/continuous.py continue_training --recipe workflows/recipes/continuous.yaml
    pyflyte run workflows/continuous.py refresh_rl --recipe workflows/recipes/continuous.yaml

The model registry is the ledger: each version is a generation, and its tags record its inputs and its outcome. A run
reads the ledger, does what is missing, and commits with the last tag of a new version. After a crash, the same command
repeats the run from the caches with the same result.

The DAG's shape depends on earlier results (how much text is new, what was decided), so each part is a dynamic workflow
that takes those results as inputs, reads the ledger, and runs a list of calls (workflows/continuous_training/calls.py).
"""

import json

from flytekit import workflow

import baton.workflows.recipe.file  # noqa: F401 - reports problems of a recipe file
from baton.infra.errors import UserError
from baton.infra.progress import say
from baton.infra.storage.disk_errors import disk_errors_named
from baton.infra.text import number, size
from baton.infra.tracking.execution import execution_id, mark_last
from baton.tasks.data.artifact import Corpus, TokenizedCorpus, Tokenizer
from baton.tasks.models.artifact import HFModel
from baton.tasks.promote.artifact import Decision, Promotion
from baton.workflows.continuous_training import calls
from baton.workflows.continuous_training.calls import NEW_TEXT, SERVING, Night
from baton.workflows.continuous_training.generations import (
    champion,
    data_sets,
    generations,
    is_tuned,
    named_by,
    part,
    replayed,
    tokens_of,
)
from baton.workflows.continuous_training.lock import exclusive
from baton.workflows.continuous_training.recipe import ContinuousRecipe
from baton.workflows.continuous_training.replay import source_weights, unweighted
from baton.workflows.dag.dynamic_part import dag_part
from baton.workflows.dag.post_training import BASE
from baton.workflows.dag.recorded import begin
from baton.workflows.dag.walk import walk


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
        known = generations(name)
        corpus = recipe.corpus.pinned(ask_hub=True)
        dag = calls.found(recipe.pinned_except_corpus(), corpus, [each.version for each in known])
        message: str = grow(recipe=recipe, newest=walk(dag, named_by(dag, known))[NEW_TEXT])
        return message


@dag_part
def grow(recipe: ContinuousRecipe, newest: Corpus) -> str:
    """Tokenize the new text, if there is enough."""
    before = generations(_name(recipe))
    say(_changes(newest))
    if not recipe.grow.is_enough(newest.documents, newest.bytes):
        if not before:
            raise UserError("corpus: the source has no text for the first generation; add documents to it")
        enough = f", and less than grow.min_bytes ({size(recipe.grow.min_bytes)})" if newest.documents else ""
        return _refresh_if_due(
            recipe, f"{_name(recipe)}: nothing to do: {size(newest.bytes)} of new text to train on{enough}"
        )
    given = {NEW_TEXT: newest} | ({"tokenizer": part(before[0], "tokenizer")} if before else {})
    made = walk(calls.tokenized(recipe.pinned_except_corpus(), is_first=not before), given)
    message: str = train(recipe=recipe, newest=newest, tokenizer=made["tokenizer"], shards=made["shards"])
    return message


@dag_part
def train(recipe: ContinuousRecipe, newest: Corpus, tokenizer: Tokenizer, shards: TokenizedCorpus) -> str:
    """Train on the new text mixed with replayed text, and compare the candidate with the champion."""
    before = generations(_name(recipe))
    accepted = [generation for generation in before if generation.accepted]
    serving = champion(_name(recipe))
    night = Night(
        new=tokens_of(shards),
        vocabulary=recipe.pretrain.model.vocab_size or shards.vocab_size,
        accepted=[generation.version for generation in accepted],
        data_sets=data_sets(replayed(accepted, newest), len(accepted), recipe.grow.compact) if accepted else [],
        has_champion=bool(serving),
        execution=execution_id(),
    )
    if without := unweighted(night.replayed(), source_weights(recipe.corpus)):
        say(f"warning: replayed by its size, for want of a weight in corpus.sources: {', '.join(without)}")
    if accepted:
        aside = ", ".join(str(each.version) for each in before if each.rolled_back)
        say(f"training continues from version {accepted[-1].version}" + (f"; set aside: {aside}" if aside else ""))
    dag = calls.trained(recipe.pinned_except_corpus(), night)
    given = {NEW_TEXT: newest, "tokenizer": tokenizer, "shards": shards} | _named(serving)
    made = walk(dag, given | named_by(dag, before))
    message: str = conclude(recipe=recipe, decision=made["decide"], promoted=made["promote"])
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
        base = champion(_name(recipe))
        if base is None:
            return _end(f"{name}: nothing to do: {_name(recipe)} has no champion yet")
        if is_tuned(base, tuned):
            return _end(f"{name}: nothing to do: the champion of {_name(recipe)} has been tuned")
        message: str = tune_champion(recipe=recipe, base=base)
        return message


@dag_part
def tune_champion(recipe: ContinuousRecipe, base: HFModel) -> str:
    """Post-train `base`."""
    assert recipe.refresh
    known, serving = generations(_name(recipe)), champion(recipe.refresh.name)
    accepted = [generation.version for generation in known if generation.accepted]
    newest, execution = known[-1].version, execution_id()
    dag = calls.refreshed(recipe.pinned_except_corpus(), accepted, newest, bool(serving), execution)
    made = walk(dag, {BASE: base} | _named(serving) | named_by(dag, known))
    message: str = conclude_refresh(decision=made["decide"], promoted=made["promote"])
    return message


@dag_part
def conclude_refresh(decision: Decision, promoted: Promotion) -> str:
    return _end(f"{promoted.registry_name} version {promoted.registry_version}: {_verdict(decision)}")


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


def _named(serving: HFModel | None) -> dict[str, HFModel]:
    """The champion by the name that calls have for it; empty if there is none."""
    return {SERVING: serving} if serving else {}


def _changes(newest: Corpus) -> str:
    counts = {"new": newest.documents + newest.held_out_documents - newest.edited, "edited": newest.edited}
    counts |= {"renamed": newest.renamed, "deleted": newest.deleted}
    return f"documents: {', '.join(f'{number(many)} {name}' for name, many in counts.items())}"


def _verdict(decision: Decision) -> str:
    return str(json.loads((decision.local() / "decision.json").read_text())["words"])
