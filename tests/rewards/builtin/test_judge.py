"""A judge behind an OpenAI-compatible chat API on this machine."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from baton.tasks.core.job import StageError
from baton.tasks.rewards.scorer import Scorer, Scores
from baton.tasks.rewards.spec import RewardSpec


class Server(ThreadingHTTPServer):
    """A server that returns a given reply and records the requests."""

    def __init__(self) -> None:
        self.says: dict[str, str | None] = {}  # replies by a word of the question; None refuses the request
        self.instead: bytes | None = None  # the body of every answer
        self.finish_reason = "stop"
        self.asked: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        self.server.keys.add(self.headers["Authorization"])
        question = asked["messages"][1]["content"]
        reply = next((says for word, says in self.server.says.items() if word in question), "")
        choice = {
            "index": 0,
            "finish_reason": self.server.finish_reason,
            "message": {"role": "assistant", "content": reply},
        }
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        error = None if reply else (404, "no such model") if reply == "" else (400, "maximum context length")
        content = json.dumps({"error": {"message": error[1]}} if error else body).encode()
        if self.server.instead is not None:
            error, content = None, self.server.instead
        self.send_response(error[0] if error else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def prepared(server: Server) -> Scorer:
    url = f"http://127.0.0.1:{server.server_port}/v1"
    return Scorer([RewardSpec.model_validate({"judge": {"url": url, "model": "m", "rubric": "10 for kindness"}})])


def judged(server: Server, *completions: str, key: str | None = None, lowest: int = 1, **columns: list[Any]) -> Scores:
    url = f"http://127.0.0.1:{server.server_port}/v1"
    options = {"url": url, "model": "m", "rubric": "10 for kindness", "column": "answer" if columns else None}
    with Scorer([RewardSpec.model_validate({"judge": options | {"key_variable": key, "lowest": lowest}})]) as scorer:
        return scorer.score(["Say hello"] * len(completions), completions, columns)


def test_a_judge_s_score_is_scaled_to_0_to_1(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "open")
    server.says = {
        "good": "Kind.\nScore: 10",
        "fair": "Score: 9 at first, but **Score:** 4",
        "bad": "score=1",
        "odd": "Score: 11",
    }

    scores = judged(server, "good", "fair", "bad", "odd", key="JUDGE_KEY", answer=["ref"] * 4)

    assert scores.total == [1.0, pytest.approx(1 / 3), 0.0, None]
    assert scores.metrics == {"judge_without_score": 0.25}
    assert server.keys == {"Bearer open"}
    system, question = server.asked[0]["messages"]
    assert "10 for kindness" in system["content"] and "from 1\nto 10" in system["content"]
    assert "<task>\nSay hello\n</task>\n\n<reference>\nref\n</reference>\n\n<answer>\n" in question["content"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("Score: -10", 0.0),
        ("**Score:** -6", 0.2),
        ("Score (-10 to 10): 4", 0.7),
        ("Score [-10-10]: 4", 0.7),
        ("Score: 8/10", 0.9),
        ("Score:\n8.", 0.9),
        ("Score: 3, no, score: 7.5", None),
        ("Score: 7-8", None),
        ("Score: 1e1", None),
        ("score 1 to 10: 9", None),
        ("Score: 3\n\nA score of 10 would need more; score 10 is for perfect answers.", 0.65),
        ("Score: 8 out of 10\n(minimum score: 1)", 0.9),
        ("Score: 8, a score 10 would be too high", 0.9),
        ("Score: −5", None),  # a mathematical minus sign
    ],
)
def test_a_score_is_one_whole_number_of_the_scale(server: Server, reply: str, score: float | None) -> None:
    server.says = {"known": "Score: 10", "asked": reply}
    assert judged(server, "known", "asked", lowest=-10).total == [1.0, score and pytest.approx(score)]


def test_a_judge_that_never_gives_a_score_is_an_error(server: Server) -> None:
    server.says = {"": "I would rather not."}

    with pytest.raises(
        StageError, match=r"reward judge: the judge m returned no `Score: N`; it replied 'I would rather not.'"
    ):
        judged(server, "hello")


def test_a_judge_whose_replies_are_all_cut_is_an_error(server: Server) -> None:
    server.says, server.finish_reason = {"": "Let me think"}, "length"

    with pytest.raises(StageError, match=r"no `Score: N`; it replied nothing, or was cut \(max_tokens is 512\)"):
        judged(server, "hello")


def test_a_judge_that_has_scored_and_then_does_not_is_no_error(server: Server) -> None:
    server.says = {"good": "Score: 10", "odd": f"Score: {'9' * 5000}"}
    with prepared(server) as scorer:
        assert scorer.score(["p"], ["good"]).total == [1.0]
        assert scorer.score(["p"], ["odd"]).total == [None]


def test_a_completion_that_is_too_long_for_the_judge_has_no_score(server: Server) -> None:
    server.says = {"good": "Score: 10", "long": None}

    assert judged(server, "good", "long").total == [1.0, None]


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_reply_that_was_cut_has_no_score(server: Server, reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    server.says = {"": "Good.\nScore: 1"}  # out of 10

    with prepared(server) as scorer:
        assert scorer.score(["p"], ["whole"]).total == [0.0]
        server.finish_reason = reason
        assert scorer.score(["p"], ["cut"]).total == [None]
    assert f"it was cut ({reason}; max_tokens is 512)" in capfd.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message": "overloaded"}}',
        b'{"choices": []}',
        b'{"choices": [{"finish_reason": "stop"}]}',
        b'{"choices": [{"finish_reason": "stop", "message": {"content": [{"type": "text"}]}}]}',
        b"[1, 2]",
        b"null",
        b'{"choices": [',
        b"<html>",
        b"",
    ],
)
def test_a_server_that_fails_is_an_error_and_no_low_score(server: Server, body: bytes) -> None:
    server.says = {"": "Score: 7"}

    with prepared(server) as scorer:
        scorer.score(["p"], ["before"])
        server.instead = body
        with pytest.raises(StageError, match=r"the judge m at http://127.0.0.1.* (returned no chat|does not answer)"):
            scorer.score(["p"], ["after"])


def test_a_judge_that_is_not_there_is_an_error(server: Server) -> None:
    with pytest.raises(StageError, match=r"the judge m at http://127.0.0.1.* does not answer: .*no such model"):
        judged(server, "hello")
