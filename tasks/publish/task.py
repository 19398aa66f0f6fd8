"""The last model of a run, published, as a Flyte task."""

from typing import Any

import images
from infra.launch import Engine
from tasks.artifacts import (
    Corpus,
    EvalReport,
    HFModel,
    MegatronCheckpoint,
    PublishedModel,
    TokenizedCorpus,
    Tokenizer,
)
from tasks.publish.spec import PublishSpec
from tasks.stage import run, stage

ENGINE = Engine("publish", "tasks.publish.publish", version="2")


@stage(ENGINE, image=images.DATA)
def publish(
    spec: PublishSpec,
    model: HFModel,
    reports: list[EvalReport],
    models: list[HFModel],
    more_corpora: list[Corpus],
    corpus: Corpus | None = None,
    checkpoint: MegatronCheckpoint | None = None,
    shards: TokenizedCorpus | None = None,
    tokenizer: Tokenizer | None = None,
) -> PublishedModel:
    """The model with a card made from the run, and its version in the model registry. `models` (those it
    came from), the corpora, `checkpoint`, `shards` and `tokenizer` are only told about."""
    told: dict[str, Any] = {
        **{f"eval_{report.label}": report for report in reports},
        **{f"from_{each.label}": each for each in models if each.digest != model.digest},
        "corpus": corpus,
        **{f"corpus_{number}": each for number, each in enumerate(more_corpora, 2)},
        "checkpoint": checkpoint,
        "shards": shards,
        "tokenizer": tokenizer,
    }
    return run(ENGINE, PublishedModel, spec, model=model, **{name: item for name, item in told.items() if item})
