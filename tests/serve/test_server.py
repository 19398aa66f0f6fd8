"""A server process: start, failures, stop. The server is the small one, and the processes are real."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from baton.tasks.core.manifest import ArtifactError, write_manifest
from baton.tasks.serve.__main__ import main
from baton.tasks.serve.server import Server, ServerFailed, open_served, reserve
from baton.tasks.serve.smoke import smoke_test
from baton.tasks.serve.spec import ServeSpec
from tests.serve.followed import small_model

SPEC = ServeSpec(start_timeout_s=20)


def start(model: Path, log: Path, spec: ServeSpec = SPEC) -> Server:
    return Server(spec, open_served(model), log, module="tests.serve.small_server")


def test_it_becomes_healthy_answers_and_ends(tmp_path: Path) -> None:
    server = start(small_model(tmp_path / "model"), tmp_path / "log")
    try:
        server.wait_until_healthy(lambda waited: None)
        answers = smoke_test(server.url, server.model, server.key)
        assert (answers.completion, answers.chat) == ("x" * 8, None)
    finally:
        server.stop()
    assert not server.alive


def test_one_that_dies_shows_the_end_of_its_log(tmp_path: Path) -> None:
    server = start(small_model(tmp_path / "model", "dies"), tmp_path / "log")
    with pytest.raises(ServerFailed, match=r"(?s)exit code 1 .*the weights cannot be read"):
        server.wait_until_healthy(lambda waited: None)
    server.stop()


def test_one_that_hangs_is_cancelled(tmp_path: Path) -> None:
    quick = ServeSpec(start_timeout_s=3)
    server = start(small_model(tmp_path / "model", "never healthy"), tmp_path / "log", quick)
    with pytest.raises(ServerFailed, match="not healthy after 3 s"):
        server.wait_until_healthy(lambda waited: None)
    server.stop()


def test_another_s_answer_is_found_out(tmp_path: Path) -> None:
    server = start(small_model(tmp_path / "model"), tmp_path / "log")
    other = open_served(small_model(tmp_path / "other"))
    try:
        server.wait_until_healthy(lambda waited: None)
        with pytest.raises(ServerFailed, match="/v1/models lists"):
            smoke_test(server.url, other, server.key)
    finally:
        server.stop()


def test_one_that_tokenizes_otherwise_is_found_out(tmp_path: Path) -> None:
    server = start(small_model(tmp_path / "model", "tokenizes otherwise"), tmp_path / "log")
    try:
        server.wait_until_healthy(lambda waited: None)
        with pytest.raises(ServerFailed, match=r"the tokens of 'def f\(x\).* are \[0, 0\], not \[0\]"):
            smoke_test(server.url, server.model)
    finally:
        server.stop()


def test_one_whose_base_answers_requests_without_a_model_is_found_out(tmp_path: Path) -> None:
    server = start(small_model(tmp_path / "model", "answers with its base"), tmp_path / "log")
    try:
        server.wait_until_healthy(lambda waited: None)
        with pytest.raises(ServerFailed, match=f"a response is from base-of-{server.model.digest}"):
            smoke_test(server.url, server.model, server.key)
    finally:
        server.stop()


def test_a_reserved_port_is_the_server_s_and_no_one_else_s() -> None:
    with reserve("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        with socket.socket() as another, pytest.raises(OSError, match="in use"):
            another.bind(("127.0.0.1", port))  # binds without SO_REUSEADDR, as an outgoing connection does
        with reserve("127.0.0.1", port) as server:
            server.listen()
            with pytest.raises(ServerFailed, match="choose another --port"):
                reserve("127.0.0.1", port)


def test_a_changed_model_is_not_served(tmp_path: Path) -> None:
    model = small_model(tmp_path / "model")
    (model / "name").write_text("tampered")
    with pytest.raises(ArtifactError, match=r"name has 8 bytes|name was changed"):
        open_served(model)


def test_what_is_no_model_is_not_served(tmp_path: Path) -> None:
    write_manifest(tmp_path, "corpus", {})
    with pytest.raises(ArtifactError, match="a corpus; only an hf_model"):
        open_served(tmp_path)


def test_a_published_model_is_served_under_its_model_s_digest_and_its_registered_name(tmp_path: Path) -> None:
    facts = {"label": "grpo", "registry_name": "coder", "registry_version": "3"}
    write_manifest(tmp_path, "published_model", facts, {}, {"model": "ab" * 32})
    served = open_served(tmp_path)
    assert (served.digest, served.name) == ("ab" * 32, "coder")


def test_an_endpoint_whose_model_is_gone_says_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()
    (tmp_path / "endpoint.json").write_text("{}")
    (tmp_path / "record" / "model.json").write_text(f'{{"path": "{tmp_path}/gone", "digest": "{"ab" * 32}"}}')
    write_manifest(tmp_path, "endpoint", {"label": "grpo"}, {}, {"model": "ab" * 32})
    ended = CliRunner().invoke(main, [str(tmp_path), "--port", "0"])
    assert ended.exit_code == 1
    assert f"--like {tmp_path}" in ended.output and "Traceback" not in ended.output


@pytest.mark.parametrize("content", ["", "[]", "{}", "\0"])
def test_an_endpoint_whose_record_is_damaged_says_the_way_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "model.json").write_text(content)
    write_manifest(tmp_path, "endpoint", {"label": "grpo"}, {}, {"model": "ab" * 32})
    ended = CliRunner().invoke(main, [str(tmp_path), "--port", "0"])
    assert ended.exit_code == 1
    assert "serve the model's folder" in ended.output and "Traceback" not in ended.output


def test_either_a_path_or_a_name(tmp_path: Path) -> None:
    for words in ([], [str(tmp_path), "--follow", "coder"]):
        assert "give either MODEL or --follow NAME" in CliRunner().invoke(main, words).output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--follow", "coder", "--base", "."], "--base applies to MODEL only"),
        ([".", "--every", "3"], "--every applies to --follow only"),
        ([".", "--alias", "champion"], "--alias applies to --follow only"),
        (["--follow", "a/b:c"], "--follow 'a/b:c': must be the name of a registered model"),
        (["--follow", ""], "--follow '': must be the name"),
        (["--follow", " "], "--follow ' ': must be the name"),
        (["--follow", "coder", "--alias", ""], "--alias '': must be letters, digits, _ and -"),
        (["--follow", "coder", "--alias", "v3"], "--alias 'v3': must be letters"),
        (["--follow", "coder", "--alias", "a b"], "--alias 'a b': must be letters"),
        (["--follow", "coder", "--like", "."], "a hf_model; must be the folder of an endpoint"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small_model(tmp_path / "model"))
    ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 2
    assert message in " ".join(ended.output.replace("│", "").split())
