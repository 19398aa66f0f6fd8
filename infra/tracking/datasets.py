"""Record a stage's inputs and outputs for MLflow's own pages, as dataset inputs and logged models.

The lineage graph itself is in the tags `baton.input.<name>` and `baton.output`, with complete digests: MLflow cuts a
dataset's digest at 36 characters.
"""

import json
import re
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModel, LoggedModelOutput, Metric

from baton.infra.tracking.mlflow_records import MlflowRecord

DIGEST_CHARACTERS = 36
MODEL_KIND = "hf_model"
DIGEST_TAG = "baton.artifact"


def send_lineage(client: MlflowClient, experiment: str, run_id: str, record: MlflowRecord) -> None:
    """Log a stage's dataset inputs, the model that it output, or an evaluation's scores on the evaluated model.
    Idempotent."""
    if record.inputs:
        client.log_inputs(run_id, datasets=[_dataset(name, digest) for name, digest in record.inputs.items()])
    if record.output is None:
        return
    if record.output["kind"] == MODEL_KIND:
        _log_model(client, experiment, run_id, record.output)
    elif about := record.output["facts"].get("model_digest"):
        _score(client, experiment, run_id, record, about)


def _dataset(name: str, digest: str) -> DatasetInput:
    source = json.dumps({"digest": digest})
    dataset = Dataset(name=name, digest=digest[:DIGEST_CHARACTERS], source_type="baton", source=source)
    return DatasetInput(dataset, [InputTag("mlflow.data.context", name)])


def _log_model(client: MlflowClient, experiment: str, run_id: str, output: dict[str, Any]) -> None:
    model = _model(client, experiment, output["digest"])
    if model is None:
        label = re.sub(r"[^\w-]", "-", str(output["facts"].get("label") or "model"))
        tags = {DIGEST_TAG: output["digest"]}
        model = client.create_logged_model(experiment, label, source_run_id=run_id, tags=tags)
    if str(model.status) != "READY":  # new, or left by an upload that was killed at this point
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
        client.finalize_logged_model(model.model_id, "READY")


def _score(client: MlflowClient, experiment: str, run_id: str, record: MlflowRecord, about: str) -> None:
    model = _model(client, experiment, about)
    if model is not None:
        when = int((record.ended or record.started) * 1000)
        scores = [Metric(name, value, when, 0, model.model_id) for name, value in record.metrics.items()]
        client.log_batch(run_id, metrics=scores)


def _model(client: MlflowClient, experiment: str, digest: str) -> LoggedModel | None:
    models: list[LoggedModel] = list(client.search_logged_models([experiment], f"tags.`{DIGEST_TAG}` = '{digest}'"))
    return models[0] if models else None
