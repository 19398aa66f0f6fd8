"""Publishing to the Hugging Face hub, with its own client and a hub on this machine (tests/hub.py)."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from baton.infra.storage.buckets import StorageError
from baton.tasks.core.job import open_job
from baton.tasks.core.manifest import read_manifest
from baton.tasks.pages.source import Source
from baton.tasks.publish.page import published_model
from baton.tasks.publish.publish import work
from baton.tasks.publish.spec import PublishSpec
from tests.hub import TOKEN, Hub
from tests.publish.conftest import Chain, publish

NAME = "team/tiny"
SPEC: dict[str, Any] = {"name": "tiny", "hub": NAME}


@pytest.fixture
def used(hub: Hub, home: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub.used_here(monkeypatch)
    return hub


def test_the_model_and_its_card_are_one_commit_of_a_private_repository(
    home: Path, hub: Hub, sealed: Chain, tmp_path: Path
) -> None:
    job = sealed.job(tmp_path / "job", SPEC, "model", "base", "eval_grpo")
    done = publish(job, **hub.environment())
    assert done.returncode == 0, done.stderr
    stored, output = hub.model(NAME), job / "output"
    assert stored.private and [title for _, title, _ in stored.commits] == ["initial commit", "tiny: grpo"]
    files = {name: content for name, content in stored.files.items() if name != ".gitattributes"}
    assert files == {name: (output / name).read_bytes() for name in read_manifest(output).files}

    manifest = read_manifest(output)
    assert (manifest.facts["hub"], manifest.facts["hub_commit"]) == (NAME, stored.head)
    page = str(published_model(Source("publish", output, manifest)))
    assert f"{NAME} on the Hugging Face hub, commit {stored.head}" in page
    everything = [path for path in job.rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in path.read_bytes() for path in everything) and TOKEN not in done.stderr


def test_what_the_card_says_loads_the_model_from_the_hub(used: Hub, sealed: Chain, tmp_path: Path) -> None:
    work(open_job(sealed.job(tmp_path / "job", SPEC, "model", "base")))
    (code,) = re.findall(r"```python\n(.*?)```", used.model(NAME).files["README.md"].decode(), re.S)
    assert f'path = "{NAME}"' in code
    environment = os.environ | used.environment(HF_HOME=str(tmp_path / "cache"))
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_a_repeated_publication_sends_nothing(used: Hub, sealed: Chain, tmp_path: Path) -> None:
    job = open_job(sealed.job(tmp_path / "job", SPEC, "model"))
    work(job)
    sent, head = used.count("PUT"), used.model(NAME).head
    work(job)
    work(open_job(sealed.job(tmp_path / "other", SPEC, "model")))
    assert sent and used.count("PUT") == sent and used.model(NAME).head == head


def test_an_interrupted_publication_continues_with_the_files_that_are_missing(
    used: Hub, sealed: Chain, tmp_path: Path
) -> None:
    job = open_job(sealed.job(tmp_path / "job", SPEC, "model"))
    used.fault = lambda request: 403 if "/commit/" in request else None  # the weights were sent
    with pytest.raises(StorageError, match="the hub refuses the token"):
        work(job)
    assert [*used.model(NAME).files] == [".gitattributes"]
    sent = used.count("PUT")
    used.fault = lambda request: None
    work(job)
    assert "model.safetensors" in used.model(NAME).files and used.count("PUT") == sent


def test_a_repository_that_stays_private_is_reported(used: Hub, sealed: Chain, tmp_path: Path) -> None:
    used.create("model", NAME, private=True)
    job = open_job(sealed.job(tmp_path / "job", SPEC | {"private": False}, "model"))
    work(job)
    assert "team/tiny on the hub was private before and still is" in job.notices.read_text()
    assert used.model(NAME).private


@pytest.mark.parametrize("name", ["tiny", "team/a/b", "team/..", "team/a--b", "team/a.git", "../tiny", "team/<b>"])
def test_a_name_that_no_repository_has_is_a_problem(name: str) -> None:
    (problem,) = PublishSpec(hub=name).problems()
    assert problem.path == "hub" and "such as my-team/my-model" in problem.allowed


def test_fields_about_a_repository_need_one() -> None:
    assert [problem.path for problem in PublishSpec(private=False).problems()] == ["private"]


def test_a_recipe_without_a_repository_keeps_its_job() -> None:
    assert PublishSpec().identity().keys() == {"name", "alias", "description", "license"}
