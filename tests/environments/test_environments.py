"""Each conversation has its environment in a separate process, which affects neither the others nor the trainer."""

import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from baton.tasks.core.job import StageError
from baton.tasks.environments.environments import Environments, ToolResult
from baton.tasks.environments.spec import ToolUse

FILE = Path(__file__).with_name("shop.py")


def spec(**fields: Any) -> ToolUse:
    return ToolUse.model_validate({"environment": f"{FILE}:Shop", "tool_timeout_s": 1.0, **fields})


@pytest.mark.parametrize("limit", [{"tool_timeout_s": 2.0}, {"tool_memory_gb": 1.0}, {"tool_variables": ["KEY"]}])
def test_what_decides_a_tools_answer_is_part_of_the_identity(limit: dict[str, Any]) -> None:
    assert spec(**limit).identity() != spec().identity()


@pytest.fixture(scope="module")
def shops() -> Iterator[Environments]:
    with Environments(spec(tools=[f"{FILE}:add"], tool_memory_gb=1.0)) as environments:
        yield environments


def test_methods_and_tools_are_described_as_in_trl(shops: Environments) -> None:
    described = {schema["function"]["name"]: schema["function"] for schema in shops.schemas}

    assert list(described) == ["add", "buy", "hoard", "leave", "wait"]
    assert described["buy"]["parameters"]["required"] == ["item"]
    assert described["buy"]["description"] == "Buy something."
    assert shops.owns_reward


def test_each_conversation_has_its_own_instance(shops: Environments) -> None:
    seen = shops.reset([{"money": 3, "prompt": "?"}, {"money": 0, "prompt": "?"}], [1, 1])

    answers = shops.call({0: [("buy", {"item": "tea"}), ("add", {"a": 1, "b": 2})], 1: [("buy", {"item": "tea"})]})

    assert seen == [" You have 3 coins.", None]
    assert answers[0] == [ToolResult("bought tea"), ToolResult("3")]
    assert answers[1] == [ToolResult("{'error': 'tea costs 1, you have 0'}", failed=True)]
    first, second = shops.finish()
    assert first.state["money"] == 2 and first.state["bought"] == ["tea"] and "_secret" not in first.state
    assert (first.reward, second.reward) == (1.0, 0.0)


def test_chance_follows_from_the_seed(shops: Environments) -> None:
    def opened(seeds: list[int]) -> list[float]:
        shops.reset([{"money": 1}] * len(seeds), seeds)
        return [final.state["opened"] for final in shops.finish()]

    assert opened([7, 8]) == opened([7, 8])
    assert len({*opened([7, 8, 7])}) == 2


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (("buy", {"item": "tea", "price": 9}), "tea costs 9, you have 3"),
        (("steal", {}), "Tool steal not found."),
        (("buy", {"thing": "tea"}), "unexpected keyword argument 'thing'"),
        (("buy", [1]), "argument after ** must be a mapping"),
        (("leave", {"how": "sys"}), "3"),
        (("hoard", {"gigabytes": 2}), "MemoryError"),
    ],
)
def test_a_call_that_fails_is_answered_with_its_error(shops: Environments, call: Any, text: str) -> None:
    shops.reset([{"money": 3}], [0])

    (answer,) = shops.call({0: [call]})[0]

    assert answer.failed and text in answer.text
    assert shops.call({0: [("buy", {"item": "tea"})]})[0] == [ToolResult("bought tea")], "the conversation goes on"


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (("wait", {"seconds": 30}), r"Shop\.wait: it did not finish within .* stuck at .*shop\.py, line \d+, in wait"),
        (("leave", {"how": "exit"}), "Shop.leave: its process ended with exit code 3"),
        (("leave", {"how": "abort"}), "Shop.leave: its process was killed by SIGABRT"),
    ],
)
def test_an_environment_that_hangs_or_ends_is_lost_alone(shops: Environments, call: Any, why: str) -> None:
    shops.reset([{"money": 3}] * 3, [0, 1, 2])
    began = time.monotonic()

    answers = shops.call({0: [("buy", {"item": "tea"})], 1: [call], 2: [("buy", {"item": "tea"})]})

    assert answers.keys() == {0, 2} and time.monotonic() - began < 10
    assert shops.call({1: [("buy", {"item": "tea"})]}) == {}
    finals = shops.finish()
    assert [bool(final.lost) for final in finals] == [False, True, False]
    assert re.search(why, finals[1].lost)


STOPS = '''
import os, signal, threading

class Stops:
    def reset(self, **columns):
        return None

    def later(self) -> str:
        """Stop this process, but not yet."""
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGSTOP)).start()
        return "soon"

    def say(self, words: str) -> str:
        """Say something.

        Args:
            words: What to say.
        """
        return str(len(words))
'''


@pytest.mark.long
def test_a_process_that_does_not_take_its_message_is_lost_alone(tmp_path: Path) -> None:
    """The process is stopped, and the message is larger than the buffer of its socket."""
    (tmp_path / "stops.py").write_text(STOPS)
    long = "x" * 3_000_000
    with Environments(spec(environment=f"{tmp_path / 'stops.py'}:Stops")) as environments:
        environments.reset([{}, {}], [0, 0])
        environments.call({0: [("later", {})]})
        time.sleep(0.6)
        began = time.monotonic()
        answers = environments.call({number: [("say", {"words": long})] for number in (0, 1)})
        assert answers == {1: [ToolResult("3000000")]}
        assert "did not finish within its time limit" in environments.lost[0]
        assert time.monotonic() - began < 15


def test_a_reset_that_fails_names_class_row_and_line(shops: Environments) -> None:
    with pytest.raises(
        StageError, match=r'Shop.reset raised ValueError: no debts \(tests/environments/shop.py, line \d+.*"money": -1'
    ):
        shops.reset([{"money": 1}, {"money": -1}], [0, 0])


def test_there_may_be_more_conversations_than_open_files_by_default() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())  # includes the descriptors of other tests
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 100, hard))
    try:
        with Environments(spec()) as environments:
            environments.reset([{"money": 1}] * 250, [0] * 250)
            assert len(environments.call({number: [("buy", {"item": "tea"})] for number in range(250)})) == 250
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Silent", "Silent: act needs type hints and a Google-style docstring"),
        ("add", "add is not a class"),
    ],
)
def test_a_class_that_a_model_cannot_use_is_refused(name: str, words: str) -> None:
    with pytest.raises(StageError, match=words), Environments(spec(environment=f"{FILE}:{name}")):
        pass


def test_two_tools_of_one_name_are_refused(tmp_path: Path) -> None:
    for name, sign in (("one", "+"), ("other", "-")):
        (tmp_path / f"{name}.py").write_text(f"def add(a: int) -> int:\n    return {sign}a\n")
    tools = [f"{tmp_path / 'one.py'}:add", f"{tmp_path / 'other.py'}:add"]
    both = ToolUse.model_validate({"tools": tools})
    with pytest.raises(StageError, match="several tools of the name add"), Environments(both):
        pass


def test_a_reward_sees_attributes_that_json_keeps_as_they_are(tmp_path: Path) -> None:
    """With JSON, a tuple would become a list, which differs from the tuple that the reward compares it with."""
    (tmp_path / "board.py").write_text(
        "class Board:\n"
        "    def reset(self):\n"
        "        self.place, self.fields, self.half = (1, 2), {3: 'x'}, '\\ud800'\n"
        "        self.list, self.names = [1, 2], {'3': 'x'}\n"
        "    def move(self, to: int) -> str:\n"
        "        'Move it.\\n\\nArgs:\\n    to: where'\n"
        "        return 'moved'\n"
    )
    with Environments(ToolUse.model_validate({"environment": f"{tmp_path / 'board.py'}:Board"})) as environments:
        environments.reset([{}], [0])
        (final,) = environments.finish()
    assert final.state == {"list": [1, 2], "names": {"3": "x"}}


def test_a_reward_that_is_not_a_number_is_refused() -> None:
    with Environments(spec(environment=f"{FILE}:Broken")) as environments:
        environments.reset([{"money": 1}], [0])
        with pytest.raises(StageError, match=r"Broken.get_reward returned \{'reward': 1\}"):
            environments.finish()


def test_two_files_of_the_same_name_are_refused(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "calculator.py").write_text(f"def {folder}(a: int) -> int:\n    return a\n")
    names = [f"{tmp_path}/one/calculator.py:one", f"{tmp_path}/two/calculator.py:two"]

    (problem,) = spec(environment=None, tools=names).tool_problems()

    assert (problem.path, "imported as calculator.py" in problem.allowed) == ("tools.1", True)


FORGED = (
    "garbage", "5", '{"results": []}', '{"results": [["x", 5]]}', '{"state": {}, "reward": 1000}', "[" * 5000,
    '{"results": [["a", false], ["b", false]]}', '{"results": [["a", false]]}\n{"results": [["b", false]]}',
)  # fmt: skip


def test_a_process_that_may_have_run_anything_loses_its_own_conversation_and_leaves_nothing() -> None:
    with Environments(spec(environment=f"{FILE}:Hostile")) as environments:
        for written in FORGED:
            environments.reset([{}, {}], [0, 0])

            answers = environments.call({0: [("forge", {"text": f"{written}\n"})], 1: [("forge", {"text": ""})]})

            assert answers == {1: [ToolResult("forged")]}, written
            first, second = environments.finish()
            assert "its process sent an invalid answer" in first.lost and second.lost == "", written

        environments.reset([{}], [0])
        environments.call({0: [("stay", {})]})
        while not (started := sleeping()):
            time.sleep(0.01)  # setsid has not executed sleep yet
        environments.finish()
    assert not any(process.is_running() for process in started)


def sleeping() -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", "611"]]
