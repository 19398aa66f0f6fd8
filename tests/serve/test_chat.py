"""`baton chat` in a terminal and through pipes, with real processes: servers of OpenAI's API that are ready in a
second."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from baton.tasks.core.manifest import read_manifest, write_manifest
from baton.tasks.serve.chat.command import main
from tests.serve.followed import awaited, digest_of, small_model
from tests.serve.small_server import app
from tests.serve.test_proxy import running
from tests.serve.typed import CTRL_C, CTRL_D, Typed, typed
from tests.source import ROOT

DIGEST, OTHER = "aa" * 32, "bb" * 32
CHAT, SMALL = ("baton", "chat"), ("tests.serve.chat_small",)


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    with ExitStack() as stack:
        apps = [app(DIGEST, "coder"), app(OTHER, "writer"), app(DIGEST, "plain", "has no template")]
        yield [stack.enter_context(running(each)) for each in apps]


@contextmanager
def chat(*words: str, module: tuple[str, ...] = CHAT, **environment: str) -> Iterator[Typed]:
    with typed([sys.executable, "-m", *module, *words], environment) as found:
        yield found


def piped(
    text: str, *words: str, module: tuple[str, ...] = CHAT, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *module, *words],
        input=text, capture_output=True, text=True, cwd=ROOT, env=os.environ | environment, timeout=120, check=False,
    )  # fmt: skip


def asked(ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the request that a server has received."""
    return dict(json.loads(ended.stdout))


def test_through_a_pipe_the_answer_is_alone(urls: list[str]) -> None:
    ended = piped("hi\n", urls[0])
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "You said hi\n", "")


def test_the_sampling_and_the_system_message_reach_the_server(urls: list[str]) -> None:
    sampling = ["--temperature", "0.5", "--top-p", "0.9", "--max-tokens", "64", "--seed", "7"]
    sent = asked(piped("everything", urls[0], *sampling, "--system", "Be brief."))
    assert sent == {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "everything"}],
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 64,
        "seed": 7,
    }


def test_without_a_value_the_sampling_is_the_model_s(urls: list[str]) -> None:
    assert asked(piped("everything", urls[0])).keys() == {"messages"}
    assert piped("def f(", urls[0], "--completion").stdout == "01234567\n"  # this server's length for null


def test_a_cut_answer_is_reported_beside_it(urls: list[str]) -> None:
    ended = piped("a b c d e f", urls[0], "--max-tokens", "3")
    assert ended.stdout == "You said a\n"
    assert "cut off at 3 tokens" in ended.stderr


def test_a_prompt_is_completed_without_a_template(urls: list[str]) -> None:
    assert piped("def f(", urls[0], "--completion", "--max-tokens", "4").stdout == "0123\n"


def test_what_a_terminal_would_obey_is_shown_escaped(urls: list[str]) -> None:
    shown = piped("hostile", urls[0]).stdout
    assert not set(shown) & set("\x1b\x07\r\x9b\u202e")
    assert r"\x1b[2J" in shown and r"\u202e" in shown


def test_another_model_is_answered_with_the_served_ones(urls: list[str]) -> None:
    ended = piped("hi", urls[0], "--model", "nobody")
    assert ended.returncode == 1
    assert f"The model `nobody` does not exist. This server has `{DIGEST}` and `coder`" in ended.stderr


def test_a_model_without_a_template_says_what_to_do(urls: list[str]) -> None:
    ended = piped("hi", urls[2])
    assert ended.returncode == 1
    assert "has no chat template" in ended.stderr and "--completion" in ended.stderr and "sft" in ended.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["http://127.0.0.1:9"], "the server does not answer"),
        (["http://127.0.0.1:99999"], "not the URL of a server"),
        (["http://"], "not the URL of a server"),
        (["http://user:secret@127.0.0.1"], "set the key as OPENAI_API_KEY"),
        (["nothing\x1b[2J"], r"nothing\x1b[2J: neither a folder nor a model"),
        (["/"], "a folder without manifest.json"),
        (["coder", "--model", "x"], "choose a model of a server at a URL"),
        (["http://127.0.0.1:9", "--base", "."], "--base applies to a model of this machine"),
        (["coder", "--completion", "--system", "x"], "--system applies to a chat"),
    ],
)
def test_bad_words_are_refused_with_a_way_out(words: list[str], message: str, tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, words, input="hi", env={"BATON_HOME": str(tmp_path)})
    assert ended.exit_code != 0
    assert message in ended.output and "secret" not in ended.output and "Traceback" not in ended.output


@pytest.mark.parametrize(("text", "message"), [(b"\xff\xfe", "not text in UTF-8"), (b"\n", "standard input is empty")])
def test_input_that_is_no_message_is_refused(text: bytes, message: str) -> None:
    assert message in CliRunner().invoke(main, ["http://127.0.0.1:9"], input=text).output


def test_a_conversation_goes_on_and_is_forgotten(urls: list[str]) -> None:
    with chat(urls[0], "--max-tokens", "100") as person:
        assert f"coder · model {DIGEST}" in person.sees("/help")
        person.line("first")
        person.sees("You said first\n")
        person.line("/system Be brief.")
        person.line("/temp 0.25")
        person.line("everything")
        sent = json.loads(person.sees("\n> ").split("\n", 1)[1])
        assert [turn["content"] for turn in sent["messages"]] == ["Be brief.", "first", "You said first", "everything"]
        assert sent["temperature"] == 0.25
        person.type("/reset\n")
        person.line("/system")
        person.line("/temp warm")
        person.sees("must be a number from 0 to 2")
        person.line("everything")
        sent = json.loads(person.sees("\n> ").split("\n", 1)[1])
        assert [turn["content"] for turn in sent["messages"]] == ["everything"]
        person.type("/quit\n")
        assert person.ends() == 0


def test_ctrl_c_stops_an_answer_and_ctrl_d_ends(urls: list[str]) -> None:
    with chat(urls[0], "--max-tokens", "100") as person:
        person.line("forever")
        person.sees("word9 ")
        person.type(CTRL_C)
        person.sees("(stopped)")
        person.line("everything")
        sent = json.loads(person.sees("\n> ").split("\n", 1)[1])
        assert sent["messages"][1]["content"].startswith("word0 word1")  # what had arrived
        person.type("not sent")
        person.sees("not sent")
        person.type(CTRL_C)
        person.sees("(Ctrl-D or /quit ends)")
        person.sees("> ")
        person.type(CTRL_D)
        assert person.ends() == 0


def test_a_line_continues_after_a_backslash(urls: list[str]) -> None:
    with chat(urls[0]) as person:
        person.line("one\\")
        person.sees("… ")
        person.type("two\n")
        person.sees("You said one\ntwo")


def test_two_models_answer_side_by_side(urls: list[str]) -> None:
    ended = piped("hi", urls[0], "--beside", urls[1])
    expected = f"== coder · model {DIGEST}\nYou said hi\n== writer · model {OTHER}\nYou said hi\n"
    assert ended.stdout == expected
    with chat(urls[0], "--beside", urls[1]) as person:
        person.line("hi")
        person.sees("> ")
        lines = person.shown.splitlines()
        assert any(line.count("You said hi") == 2 for line in lines)
        person.type("forever\n")
        person.sees("word9")
        person.type(CTRL_C)
        person.sees("(stopped)")
        person.line("/quit")
        assert person.ends() == 0


def test_of_two_the_one_that_fails_is_named_and_the_other_answers(urls: list[str]) -> None:
    ended = piped("hi", urls[0], "--beside", urls[2])
    assert ended.returncode == 1
    assert "You said hi" in ended.stdout
    assert "plain: This model has no chat template" in ended.stderr


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a published model `talker` that has a chat template."""
    output = tmp_path / "home/jobs/publish-1/output"
    output.parent.mkdir(parents=True)
    small_model(output)
    (output / "chat_template.jinja").write_text("{{ messages }}")
    facts = {"label": "sft", "registry_name": "talker", "registry_version": "1"}
    write_manifest(output, "published_model", facts, parents={"model": DIGEST})
    return tmp_path / "home"


@pytest.mark.parametrize("named", ["talker", DIGEST[:12], "folder", "job"])
def test_a_model_of_this_machine_gets_a_server_that_ends_with_the_chat(home: Path, named: str) -> None:
    folder = home / "jobs/publish-1"
    named = {"folder": str(folder / "output"), "job": str(folder)}.get(named, named)
    ended = piped("hi", named, module=SMALL, BATON_HOME=str(home))
    assert (ended.returncode, ended.stdout) == (0, "You said hi\n")
    assert "starting its server" in ended.stderr
    assert servers_of(folder) == []


def servers_of(folder: Path) -> list[psutil.Process]:
    """Return the servers of the model in a folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "tests.serve.small_server" in words and any(str(folder) in word for word in words):
            found.append(process)
    return found


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_killed_chat_leaves_no_server(home: Path, signum: signal.Signals) -> None:
    with chat("talker", module=SMALL, BATON_HOME=str(home)) as person:
        person.sees("/help")
        assert len(started := servers_of(home)) == 1
        person.process.send_signal(signum)
        person.ends()
        assert psutil.wait_procs(started, timeout=20)[1] == []


def test_ctrl_c_during_the_start_leaves_no_server(home: Path) -> None:
    output = home / "jobs/publish-1/output"
    (output / "behaviour").write_text("never healthy")
    manifest = read_manifest(output)
    write_manifest(output, manifest.kind, manifest.facts, parents=manifest.parents)
    with chat("talker", module=SMALL, BATON_HOME=str(home)) as person:
        started = awaited(lambda: servers_of(home), 60, output / "behaviour")
        person.sees("starting its server")
        person.type(CTRL_C)
        assert person.ends() == 1
        assert psutil.wait_procs(started, timeout=20)[1] == []


def test_a_local_model_without_a_template_starts_no_server(tmp_path: Path) -> None:
    model = small_model(tmp_path / "model")
    ended = piped("hi", str(model), module=SMALL, BATON_HOME=str(tmp_path))
    assert ended.returncode == 1
    assert f"small ({digest_of(model)[:12]}): This model has no chat template" in ended.stderr
    assert "starting" not in ended.stderr
    ended = piped("hi", str(model), "--completion", "--max-tokens", "2", module=SMALL, BATON_HOME=str(tmp_path))
    assert ended.stdout == "01\n"
