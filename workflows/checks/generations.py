"""Check that continuous training continues with the tokenizer, the initial weights and the model of its generations,
and that their files and the champion exist."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from baton.infra.flyte.hooks import import_lock
from baton.infra.progress import say_once
from baton.infra.storage.address import digest_of
from baton.infra.storage.buckets import StorageError, is_bucket
from baton.infra.tracking.redact import redact_spec
from baton.infra.tracking.sqlite_file import store_file
from baton.infra.tracking.store import tracking_uri
from baton.tasks.convert.load_hf_spec import LoadHFSpec
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import ArtifactError, Manifest
from baton.tasks.core.spec import Problem
from baton.tasks.core.stored import manifest_at
from baton.tasks.data.spec import TokenizerSpec
from baton.tasks.models.model_spec import ModelSpec
from baton.workflows.checks.run_context import RunContext, is_for_a_cluster

if TYPE_CHECKING:
    from baton.tasks.promote.ledger import Generation


def same_as_before(context: RunContext) -> list[Problem]:
    """Check that values which only a first generation uses are unchanged, as far as the registry and the generation's
    files can be read, and report those that were not compared. On a cluster, the run's first pod checks this."""
    needed = {"grow", "publish", "tokenizer", "pretrain"}
    if not needed <= context.specs.keys() or is_for_a_cluster():
        return []
    store = store_file(tracking_uri())
    if store and not store.exists():
        return []
    with import_lock():  # MLflow
        from baton.tasks.promote.ledger import generations
    try:
        before = generations(context.specs["publish"].name, patience_s=0)
        problems = [*_champions(context), *_missing_parts(before)]
        return problems or ([*_changed(context, before)] if before else [])
    except (StageError, ArtifactError, StorageError, OSError) as error:
        why = str(error)
    except (KeyError, ValueError) as error:  # in a recorded spec
        why = f"recorded by another version of Baton ({type(error).__name__}: {error})"
    say_once(f"tokenizer, init_from and pretrain.model are not compared with those of earlier generations: {why}")
    return []


def _champions(context: RunContext) -> Iterator[Problem]:
    """Champions without alias or files."""
    from baton.tasks.promote.ledger import NoChampion, champion

    for section in ("publish", "refresh"):
        if spec := context.specs.get(section):
            try:
                found = champion(spec.name, patience_s=0)
            except NoChampion as error:
                yield Problem(f"{section}.name", spec.name, str(error))
            else:
                yield from _missing([found] if found else [], "model", f"{section}.name")


def _missing_parts(before: "list[Generation]") -> Iterator[Problem]:
    """The parts of earlier generations that the run reads and that no longer exist."""
    accepted = [generation for generation in before if generation.accepted]
    read = {"tokenizer": before[:1], "corpus": before, "shards": accepted, "checkpoint": accepted[-1:]}
    for part, generations in read.items():
        yield from _missing(generations, part, "publish.name")


def _missing(generations: "list[Generation]", name: str, path: str) -> Iterator[Problem]:
    """The generations without this part, by the sizes of files on this machine's disks only."""
    from baton.tasks.promote.ledger import LedgerError, manifest_of

    for generation in generations:
        if (part := generation.parts.get(name)) and not is_bucket(part.place):
            try:
                manifest_of(part)
            except LedgerError as error:
                yield Problem(path, generation.name, f"a name whose files exist: {error}")


def _changed(context: RunContext, before: "list[Generation]") -> Iterator[Problem]:
    yield from _unlike("tokenizer", context.specs["tokenizer"], _manifest(before[0], "tokenizer").spec, before[0])
    accepted = [generation for generation in before if generation.accepted]
    if not accepted:
        return
    first, init_from = accepted[0], context.specs.get("init_from")
    started = "start.0" in _manifest(first, "checkpoint").parents
    if init_from and not started:
        yield Problem("init_from", init_from.model, f"null, {_in_force(first)}")
    elif started and not init_from:
        yield Problem("init_from", None, f"the model that training began with, {_in_force(first)}")
    elif init_from and "start" in first.parts:
        yield from _unlike("init_from", init_from, _manifest(first, "start").spec, first)
    last = accepted[-1]
    trained = _manifest(last, "checkpoint")
    model, initial = context.specs["pretrain"].model, _model(trained)
    unlike = model.model_copy(update={"vocab_size": model.vocab_size or initial.vocab_size}).unlike(initial)
    for name, (own, given) in unlike.items():
        yield Problem(f"pretrain.model.{name}", own, f"{json.dumps(given)}, {_in_force(last)}")
    if (precision := context.specs["pretrain"].precision) != trained.spec["precision"]:
        yield Problem("pretrain.precision", precision, f"{trained.spec['precision']}, {_in_force(last)}")


def _unlike(
    section: str, spec: TokenizerSpec | LoadHFSpec, recorded: dict[str, Any], generation: "Generation"
) -> Iterator[Problem]:
    """The fields that differ from the record. A folder that was moved counts as the same."""
    own = redact_spec(spec.model_dump(mode="json", exclude={"placement", "pod", "state"}))
    for name, value in own.items():
        given = recorded.get(name, value)
        moved = name in spec.existing_models() and recorded.get("state") and recorded["state"] == spec.pinned().state
        if _content(value) != _content(given) and not moved:
            yield Problem(f"{section}.{name}", value, f"{json.dumps(given)}, {_in_force(generation)}")


def _content(value: Any) -> Any:
    """The digest in an address, if any, since uploads of the same files may have other addresses; else the value."""
    return digest_of(value) or value if isinstance(value, str) else value


def _model(checkpoint: Manifest) -> ModelSpec:
    model = ModelSpec.model_validate(checkpoint.spec["model"])
    return model.model_copy(update={"vocab_size": checkpoint.facts["vocab_size"]})


def _manifest(generation: "Generation", part: str) -> Manifest:
    """The manifest of a part. Raises LedgerError, ArtifactError, StorageError, OSError."""
    return manifest_at(generation.part(part).place)


def _in_force(generation: "Generation") -> str:
    return (
        f"as version {generation.version} of {generation.name} was made with, which training continues from; to begin "
        "anew, choose another publish.name"
    )
