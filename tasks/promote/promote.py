"""Apply a promotion decision to the model registry.

Inputs: "decision" and "published". A promoted version becomes champion if the champion is still the model with which it
was compared. Whatever the decision, training must have continued from the newest accepted version; otherwise the
champion was moved during the night. The decision is written to the version's tags: first its digest, before the
champion moves, so that an interrupted promotion can be distinguished from a complete one, and last `baton.outcome`,
which makes the version a generation (see tasks/promote/ledger.py). If the champion was moved by others, the reason is
written to `baton.decision.refused`. Idempotent. Output: promotion.json, with the aliases afterwards.
"""

import json
from typing import Any

from mlflow import MlflowClient

from baton.infra.storage.durable import write_json
from baton.infra.tracking.set_aside import OUTCOME_TAG, PARENT_TAG, REFUSED_TAG
from baton.tasks.core.job import Job, StageError, main
from baton.tasks.core.manifest import read_manifest
from baton.tasks.promote.ledger import generations
from baton.tasks.promote.rule import PROMOTED
from baton.tasks.publish.aliases import (
    CHAMPION,
    DECISION_TAG,
    PREVIOUS,
    RESUMED_TAG,
    Version,
    compared_champion,
    version_at,
    versions,
)
from baton.tasks.publish.champion import ChampionChanged, promote
from baton.tasks.publish.registry import PATIENCE_S, ask


def work(job: Job) -> None:
    decision_dir, published_dir = job.input("decision"), job.input("published")
    decision = json.loads((decision_dir / "decision.json").read_text())
    version = _registered(job, read_manifest(published_dir).facts, decision)
    name, outcome = version.name, decision["outcome"]

    digest = job.inputs["decision"]["digest"]
    tags = {DECISION_TAG: digest, f"{DECISION_TAG}.words": decision["words"]}
    if OUTCOME_TAG not in version.tags or version.tags.get(DECISION_TAG) != digest:  # else it was carried out before
        try:
            tags[PARENT_TAG] = str(_continued(version))
            if outcome == PROMOTED:
                job.progress(0, 2, "steps", now="moving the champion")
                expected = _compared_with(version, decision)
                ask(lambda client: client.set_model_version_tag(name, str(version.version), DECISION_TAG, digest))
                promote(name, version.version, expected)
        except ChampionChanged as error:
            refused = str(error)
            ask(lambda client: client.set_model_version_tag(name, str(version.version), REFUSED_TAG, refused))
            raise
    job.progress(1, 2, "steps", now="writing the decision")
    tags |= {
        f"{DECISION_TAG}.{measure['name']}": _format(measure)
        for measure in decision["measures"]
        if measure["met"] is not None
    }

    def write(client: MlflowClient) -> None:
        for key, value in (tags | {OUTCOME_TAG: outcome}).items():  # the outcome is last and commits the others
            client.set_model_version_tag(name, str(version.version), key, value)

    ask(write, lambda waited: job.progress(waited, PATIENCE_S, "s waiting for the model registry"))
    at = {alias: version_at(name, alias) for alias in (CHAMPION, PREVIOUS)}
    facts = {
        "registry_name": name,
        "registry_version": str(version.version),
        "outcome": outcome,
        **{alias: str(holder.version) if holder else None for alias, holder in at.items()},
    }
    job.empty_output()
    write_json(job.output / "promotion.json", {**facts, "words": decision["words"]})
    job.finish(**facts)


def _registered(job: Job, facts: dict[str, Any], decision: dict[str, Any]) -> Version:
    """Return the published version in the registry. Raises StageError if the decision is about another one."""
    name, number = facts["registry_name"], int(facts["registry_version"])
    registered = next((version for version in versions(name) if version.version == number), None)
    published = job.inputs["published"]["digest"]
    if registered is None or (registered.content != published and registered.digest != decision["candidate"]):
        raise StageError(
            f"the model registry has no {name} version {number} with the published files: they were published to "
            "another registry, or this one was emptied. Point MLFLOW_TRACKING_URI to the other, or publish again "
            f"(delete {job.inputs['published']['path']} and run the same command)"
        )
    if registered.digest != decision["candidate"]:
        raise StageError(
            f"{name} version {number} is the model {registered.digest[:12]}, and the decision is about "
            f"{decision['candidate'][:12]}: promote the version of the model that was compared"
        )
    return registered


def _continued(version: Version) -> int:
    """Return the newest accepted version, from which the candidate's training must have continued; 0 if none. Raises
    ChampionChanged."""
    older = [each for each in generations(version.name) if each.accepted and each.version != version.version]
    newest = older[-1] if older else None
    checkpoint = newest.parts.get("checkpoint") if newest else None
    if (resumed := version.tags.get(RESUMED_TAG)) and (checkpoint is None or checkpoint.digest != resumed):
        raise ChampionChanged(
            f"{version.name} version {version.version} was trained from the checkpoint {resumed[:12]}, and training "
            f"continues from {f'version {newest.version}' if newest else 'none'} since the champion was moved: run "
            "the same command again, which trains on the new text from there"
        )
    return newest.version if newest else 0


def _compared_with(version: Version, decision: dict[str, Any]) -> int | None:
    """Return the champion's version. Raises ChampionChanged if it is not the model with which the candidate was
    compared."""
    champion = version_at(version.name, CHAMPION)
    if champion and champion.version == version.version:
        return champion.version  # moved by an earlier attempt that was then interrupted
    compared = compared_champion(version.name)
    if (compared.digest if compared else None) != decision["champion"]:
        raise ChampionChanged(
            f"the champion of {version.name} is {_model(champion.digest if champion else None)}, and version "
            f"{version.version} was compared with {_model(decision['champion'])}: run the same command again, which "
            "compares it with the current champion"
        )
    return champion.version if champion else None


def _model(digest: str | None) -> str:
    return f"the model {digest[:12]}" if digest else "none"


def _format(measure: dict[str, Any]) -> str:
    """Format a difference, such as "+0.0312 (at least +0.0280)"."""
    return f"{measure['difference']:+.4f}" + (
        f" (at least {measure['low']:+.4f})" if measure["low"] is not None else ""
    )


if __name__ == "__main__":
    main(work)
