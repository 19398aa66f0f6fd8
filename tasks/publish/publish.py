"""Publish a model: its files with a card about the run, and a version in the model registry.

Inputs: "model" (a Hugging Face directory); "models.0", … (those from which it was tuned), "reports.0", … (evaluations)
and "parts.corpus", "parts.tokenizer", … are described on the card, and some of their locations are tags of the version.
Output: the model's directory with README.md. The registry's version is a fact of the artifact and not part of its
content, so that its digest is the same in a second registry. A repeated job keeps the directory and registers it. The
same model with the same sources and terms is the same version, even if its card compares it with other models.

With `hub`, the directory is then pushed to a repository of the Hugging Face hub, whose commit is a fact too. That is
last: an unreachable hub fails a job whose directory and version exist, and the repeated job sends what is missing.
"""

import json

import yaml

from baton.infra.paths import portable
from baton.infra.storage.durable import sync_tree
from baton.infra.storage.hub import Consent, Repository
from baton.infra.tracking.mlflow_names import mlflow_name
from baton.tasks.core.job import Job, main
from baton.tasks.core.manifest import MANIFEST, content_digest, read_manifest, text_digest
from baton.tasks.models.adapter_base import BASE, model_of
from baton.tasks.publish.aliases import CHAMPION, RESUMED_TAG
from baton.tasks.publish.card import model_card
from baton.tasks.publish.chain import chain, label_of, manifest_of, reports
from baton.tasks.publish.champion import make_champion
from baton.tasks.publish.copy import CARD, copy_model
from baton.tasks.publish.on_hub import push_model
from baton.tasks.publish.registry import PART_TAG, PATIENCE_S, Publication, register
from baton.tasks.publish.spec import PublishSpec
from baton.tasks.publish.why import ADVICE, UNTUNED, tie, why

# Artifacts that continuous training needs of its generations (tasks/promote/ledger.py): name in the tag -> input
PARTS = {
    "corpus": "parts.corpus",
    "shards": "parts.shards",
    "checkpoint": "parts.pretrain",
    "tokenizer": "parts.tokenizer",
    "start": "parts.start",
    "model": "model",
}
# Fields of the card's front matter about the kind of the files and the terms of their use
TERMS = ("license", "license_name", "license_link", "library_name", "pipeline_tag", "base_model")


def work(job: Job) -> None:
    spec = job.spec(PublishSpec)
    opened = model_of(job)
    model = read_manifest(opened.directory)
    links, evaluations = chain(job), reports(job)

    steps = 3 if spec.hub else 2
    label = str(model.facts["label"])
    tied = tie(spec.best, label, model.digest, evaluations)
    if tied:
        job.notice(f"publish.best: {tied}. {ADVICE}", invalidates=label == UNTUNED)
    if not (job.output / MANIFEST).exists():
        job.progress(0, steps, "steps", now="copying")
        copy_model(opened, job.output)
        (job.output / CARD).write_text(model_card(spec, opened, model, links, evaluations, tied), encoding="utf-8")
        sync_tree(job.output)  # must happen before the registry refers to it

    job.progress(1, steps, "steps", now="registering")
    measured = {
        mlflow_name(name): metric
        for report in evaluations
        if report.facts["model_digest"] == model.digest
        for name, metric in report.facts["metrics"].items()
    }
    scores = {f"baton.eval.{name}": f"{metric['value']:.10g}" for name, metric in measured.items()}
    scores |= {f"baton.metric.{name}": json.dumps(metric) for name, metric in measured.items()}
    parts = {part: job.inputs[name] for part, name in PARTS.items() if name in job.inputs}
    for name in job.names("models"):
        if label_of(job, name) == "base":
            parts["from_base"] = job.inputs[name]
    places = {
        f"{PART_TAG}{part}": f"{entry['digest']} {portable(entry.get('place', entry['path']))}"
        for part, entry in parts.items()
    }
    if "parts.pretrain" in job.inputs and (resumed := manifest_of(job, "parts.pretrain").parents.get("resume.0")):
        places[RESUMED_TAG] = resumed
    version = register(
        Publication(
            name=spec.name,
            alias=None if spec.alias == CHAMPION else spec.alias,
            directory=job.output,
            digest=content_digest(job.output),
            description=spec.description or f"{label} model of {model.facts['parameters']:,} parameters, made by Baton",
            tags={"baton.label": label, "baton.model": model.digest, **places, **scores},
            same=_same(spec, job, [entry["digest"] for entry in parts.values()]),
        ),
        waiting=lambda waited: job.progress(waited, PATIENCE_S, "s waiting for the model registry"),
    )
    if spec.alias == CHAMPION:
        make_champion(spec.name, int(version))
    chosen = {"why": why(spec.best, label, model.digest, evaluations)}
    job.finish(chosen, label=label, registry_name=spec.name, registry_version=version, **_pushed(job, spec, label))


def _pushed(job: Job, spec: PublishSpec, label: str) -> dict[str, str]:
    """Push the directory to the hub, if a repository is set; returns the facts about it. Raises StorageError."""
    if spec.hub is None:
        return {}
    pushed = push_model(
        job.output,
        Repository("model", spec.hub),
        Consent(not spec.private, spec.overwrite),
        f"{spec.name}: {label}",
        lambda done, total: job.progress(done, total, "bytes to the hub"),
    )
    if pushed.private and not spec.private:
        job.notice(
            f"publish.private is false, but {spec.hub} on the hub was private before and still is: only its settings "
            "on the hub make it public"
        )
    return {"hub": spec.hub, "hub_commit": pushed.commit}


def _same(spec: PublishSpec, job: Job, parts: list[str]) -> str:
    """Return a digest of everything that distinguishes versions: the model, its parts and the card's terms. It does not
    include the models with which this run compares the model."""
    base = job.inputs.get(f"model.{BASE}", {}).get("digest")
    terms = yaml.safe_load((job.output / CARD).read_text(encoding="utf-8").split("---\n")[1])
    described = {name: terms[name] for name in TERMS if name in terms}
    return text_digest(json.dumps([base, sorted(parts), spec.description, described], sort_keys=True))


if __name__ == "__main__":
    main(work)
