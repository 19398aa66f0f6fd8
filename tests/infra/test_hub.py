"""A folder in a repository of the hub: tests with the hub's own client and a hub on this machine (tests/hub.py)."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.infra.errors import UserError
from baton.infra.storage import hub as pushing
from baton.infra.storage.buckets import StorageError
from baton.infra.storage.hub import Consent, Pushed, Repository, check, push
from tests.hub import READER, Hub, hub_server
from tests.tracking.conftest import free_port

REPOSITORY = Repository("model", "team/tiny")
CAREFUL = Consent()
CARD = b"---\ntags: [baton]\n---\n"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server() as server:
        server.used_here(monkeypatch)
        monkeypatch.setattr(pushing, "PATIENCE_S", 4.0)
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_bytes(CARD)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    return tmp_path


def pushed(folder: Path, consent: Consent = CAREFUL) -> Pushed:
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return push(REPOSITORY, files, consent, "a version", ("*.safetensors",))


def test_files_of_any_size_are_one_commit(hub: Hub, folder: Path) -> None:
    """A large file is sent in parts, and before the others."""
    large = os.urandom(11_000_000)
    (folder / "model.safetensors").write_bytes(large)
    made, stored = pushed(folder), hub.model("team/tiny")
    assert (made.commit, made.private, made.is_new) == (stored.head, True, True)
    assert stored.files["model.safetensors"] == large and stored.files["base/config.json"] == b"{}"
    assert hub.count(r"PUT /lfs/\w+/\d+") == 11
    assert pushed(folder).is_new is False and len(stored.commits) == 2


def test_a_hub_that_answers_again_is_used(hub: Hub, folder: Path) -> None:
    statuses = iter([503, 0])
    hub.fault = lambda request: next(statuses, None)
    pushed(folder)
    assert len(hub.model("team/tiny").commits) == 2


def test_a_commit_whose_answer_was_lost_is_found(hub: Hub, folder: Path) -> None:
    first = iter(["lost"])

    def commits_and_breaks(request: str) -> int | None:
        if "/commit/" in request and next(first, None):
            stored = hub.model("team/tiny")
            stored.commit("a version", stored.files | {"README.md": CARD, "model.safetensors": b"weights"})
            return 0
        return None

    hub.fault = commits_and_breaks
    assert pushed(folder).commit == hub.model("team/tiny").head
    assert hub.model("team/tiny").files["base/config.json"] == b"{}"


def test_a_new_version_removes_the_weights_of_the_last_and_keeps_what_the_user_added(hub: Hub, folder: Path) -> None:
    pushed(folder)
    stored = hub.model("team/tiny")
    stored.commit("a picture", stored.files | {"plot.png": b"1", "model-2.safetensors": b"1"})
    pushed(folder)
    assert "plot.png" in stored.files and "model-2.safetensors" not in stored.files


def test_a_commit_of_somebody_else_during_the_push_is_not_lost(hub: Hub, folder: Path) -> None:
    stored = hub.create("model", "team/tiny", private=True)

    def meanwhile(request: str) -> None:
        if "/commit/" in request and len(stored.commits) == 1:
            stored.commit("a picture", stored.files | {"README.md": CARD, "plot.png": b"1"})

    hub.fault = meanwhile
    pushed(folder)
    assert stored.files["plot.png"] == b"1" and "model.safetensors" in stored.files


@pytest.mark.parametrize("public", [True, False])
def test_a_repository_of_everybody_or_of_others_has_to_be_asked_for(hub: Hub, folder: Path, public: bool) -> None:
    files = {} if public else {"pytorch_model.bin": b"theirs", "notes.md": b"theirs"}
    stored = hub.create("model", "team/tiny", not public, files)
    fix = "publish.private: false" if public else "publish.overwrite: true"
    assert fix in check(REPOSITORY, Consent())
    with pytest.raises(StorageError, match=fix):
        pushed(folder)
    assert len(stored.commits) == 1 and not hub.objects
    consent = Consent(public=public, overwrite=not public)
    assert check(REPOSITORY, consent) == ""
    pushed(folder, consent)
    assert "model.safetensors" in stored.files and not {"pytorch_model.bin", "notes.md"} & stored.files.keys()


def test_a_repository_is_public_only_on_request(hub: Hub, folder: Path) -> None:
    assert pushed(folder, Consent(public=True)).private is False
    assert hub.model("team/tiny").private is False


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (None, "there is no token for the hub here. Set HF_TOKEN"),
        (READER, "the hub refuses the token: You don't have the rights"),
        ("hf_of_nobody", "the hub refuses the token: Invalid credentials"),
    ],
)
def test_a_token_that_may_not_write_is_an_error_with_a_way_out(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch, token: str | None, message: str
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "none"))
    monkeypatch.setenv("HF_TOKEN", token or "")
    with pytest.raises(StorageError, match=message) as refused:
        pushed(folder)
    assert not hub.repositories and "of_nobody" not in str(refused.value)


def test_a_refusal_is_known_before_a_push(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("HF_TOKEN", READER)
    assert "the token is of reader, who is no member of team" in check(REPOSITORY, Consent())
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{free_port()}")
    assert "does not answer" in check(REPOSITORY, Consent())
    with pytest.raises(StorageError, match="Check that it can be reached from here, and run the command again"):
        pushed(folder)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE disables the hub: unset it" in check(REPOSITORY, Consent())


def test_content_that_the_hub_has_damaged_is_an_error(hub: Hub, folder: Path) -> None:
    def damaged(request: str) -> None:
        if "/tree/" in request:
            stored = hub.model("team/tiny")
            stored.commits[-1] = (*stored.commits[-1][:2], stored.files | {"model.safetensors": b"weightz"})

    hub.fault = damaged
    with pytest.raises(StorageError, match=r"the hub has other content in model\.safetensors"):
        pushed(folder)


def test_a_card_that_the_hub_refuses_is_an_error_with_its_reason(hub: Hub, folder: Path) -> None:
    (folder / "README.md").write_text("---\ntags: [baton\n---\n")
    with pytest.raises(StorageError, match=r"^hub:team/tiny: Invalid metadata in README\.md"):
        pushed(folder)
    assert list(hub.model("team/tiny").files) == [".gitattributes"]


def test_an_address_names_a_repository_of_a_model_or_of_rows() -> None:
    assert Repository.at("hub:team/tiny") == REPOSITORY
    assert str(Repository.at("hub:datasets/team/rows")) == "hub:datasets/team/rows"
    with pytest.raises(UserError, match="must be hub: and a repository's name on the hub, such as my-team/my-model"):
        Repository.at("hub:tiny")
