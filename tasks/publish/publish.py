"""Publish a model: its files with a card made from the run, and a version in the model registry.

In: "model" (a Hugging Face directory); "eval_<label>", "from_<label>", "corpus", "checkpoint", "shards"
and "tokenizer" are only told about: on the card, and where they are in the version's tags. Out: the
model's directory with README.md. The registry's version is a fact of the artifact and not part of its
content, so that a second registry does not make it another model.
"""

import json

from infra.durable import sync_tree
from infra.tracking.words import mlflow_name
from tasks.job import Job, main
from tasks.manifest import content_digest, read_manifest
from tasks.publish.card import model_card
from tasks.publish.chain import chain, reports
from tasks.publish.copy import CARD, copy_model
from tasks.publish.registry import PART_TAG, PATIENCE_S, Publication, register
from tasks.publish.spec import PublishSpec

PARTS = ("corpus", "shards", "checkpoint", "tokenizer", "from_base", "model")


def work(job: Job) -> None:
    spec = job.spec(PublishSpec)
    directory = job.input("model")
    model = read_manifest(directory)
    links, evaluations = chain(job), reports(job)

    job.progress(0, 2, "steps", now="copying")
    copy_model(directory, job.output)
    (job.output / CARD).write_text(model_card(spec, model, links, evaluations))

    sync_tree(job.output)  # before the registry vouches for it

    job.progress(1, 2, "steps", now="registering")
    label = model.facts["label"]
    measured = {
        mlflow_name(name): metric
        for report in evaluations
        if report.facts["model_digest"] == model.digest
        for name, metric in report.facts["metrics"].items()
    }
    scores = {f"baton.eval.{name}": f"{metric['value']:.4f}" for name, metric in measured.items()}
    scores |= {f"baton.metric.{name}": json.dumps(metric) for name, metric in measured.items()}
    parts = {name: job.inputs[name] for name in PARTS if name in job.inputs}
    places = {
        f"{PART_TAG}{name}": f"{each['digest']} {each.get('place', each['path'])}" for name, each in parts.items()
    }
    version = register(
        Publication(
            name=spec.name,
            alias=spec.alias,
            directory=job.output,
            digest=content_digest(job.output),
            description=spec.description or f"{label} model of {model.facts['parameters']:,} parameters, made by Baton",
            tags={"baton.label": label, "baton.model": model.digest, **places, **scores},
        ),
        waiting=lambda waited: job.progress(waited, PATIENCE_S, "s of waiting for the model registry"),
    )
    job.finish(label=label, registry_name=spec.name, registry_version=version)


if __name__ == "__main__":
    main(work)
