"""What a Flyte cluster gets of a placed stage: a task that its connector service takes."""

from collections import OrderedDict
from typing import Any

import pytest
from flytekit import workflow
from flytekit.configuration import Image, ImageConfig, SerializationSettings
from flytekit.tools.translator import get_serializable

from infra.placement.config import Placement
from tasks.artifacts import Corpus
from tasks.data.spec import CorpusSpec
from tasks.data.task import prepare_corpus

PLACEMENT = Placement(accelerators=["L4:1"], storage="s3://bucket/baton")
IMAGE = Image("default", "localhost:30000/baton", "1")


@workflow
def placed() -> Corpus:
    return prepare_corpus(spec=CorpusSpec(placement=PLACEMENT))


def template(registry: str | None, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(prepare_corpus.container_image, "registry", registry)  # type: ignore[attr-defined]
    models: OrderedDict[Any, Any] = OrderedDict()
    settings = SerializationSettings(ImageConfig(default_image=IMAGE), project="p", domain="d", version="1")
    get_serializable(models, settings, placed)
    return next(model.template for task, model in models.items() if getattr(task, "placement", None))


def test_it_is_of_the_connector_s_type_and_keeps_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    task = template("localhost:30000", monkeypatch)
    assert task.type == "skypilot"
    assert task.container.args[0] == "pyflyte-execute"
    assert task.container.args[-4:] == ["task-module", "tasks.data.task", "task-name", "prepare_corpus"]
    assert task.container.image.startswith("localhost:30000/baton-data:")
    assert Placement.model_validate(task.custom["placement"]) == PLACEMENT
    assert task.custom["storage"] == "s3://bucket/baton"


def test_without_a_registry_the_machine_has_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert template(None, monkeypatch).container.image == ""
