"""The turns of a model and an environment, with a scripted model: training uses exactly the sampled tokens."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.environments.environments import Environments
from baton.tasks.environments.spec import ToolUse
from baton.tasks.posttrain.encode import RowEncoder
from baton.tasks.posttrain.spec import LengthLimits
from baton.tasks.posttrain.tool_calls import ToolCalls
from baton.tasks.posttrain.turns import Conversation, converse, counts, totals
from tests.posttrain.tiny import tiny_model

SHOP = Path(__file__).parents[1] / "environments" / "shop.py"
ASKED = [{"role": "user", "content": "Buy tea."}]
BUY = '<tool_call>\n{"name": "buy", "arguments": {"item": "tea"}}\n</tool_call>'
DEAR = '<tool_call>\n{"name": "buy", "arguments": {"item": "tea", "price": 9}}\n</tool_call>'
LEAVE = '<tool_call>\n{"name": "leave", "arguments": {"how": "exit"}}\n</tool_call>'


@pytest.fixture(scope="module")
def shops() -> Iterator[Environments]:
    with Environments(ToolUse.model_validate({"environment": f"{SHOP}:Shop"})) as environments:
        yield environments


@pytest.fixture(scope="module", params=[True, False], ids=["<|im_end|> ends turns", "end-of-text ends turns"])
def calls(request: pytest.FixtureRequest, shops: Environments, tmp_path_factory: pytest.TempPathFactory) -> ToolCalls:
    from transformers import AutoTokenizer

    folder = tiny_model(tmp_path_factory.mktemp("model") / "tiny", turns=request.param)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return ToolCalls(tokenizer, RowEncoder(tokenizer), shops.schemas)


Play = Callable[..., list[Conversation]]


@pytest.fixture
def play(shops: Environments, calls: ToolCalls) -> Play:
    """A function that plays conversations in which each model follows its script, one token per character."""

    def played(*scripts: Sequence[str], new: int = 1000, max_turns: int = 8, ended: bool = True) -> list[Conversation]:
        waiting = [list(script) for script in scripts]

        def generate(
            prompts: list[list[int]], numbers: list[int], turn: int, most: int
        ) -> tuple[list[list[int]], list[list[float]]]:
            turns = [spelled(calls, waiting[number].pop(0), ended) for number in numbers]
            return turns, [[-0.5] * len(turn) for turn in turns]

        rows = [{"prompt": ASKED, "money": 3}] * len(scripts)
        limits = LengthLimits(prompt=2000, new=new, total=2000 + new, shown="")
        return converse(rows, [0] * len(rows), shops, calls, generate, limits, max_turns)

    return played


def spelled(calls: ToolCalls, text: str, ended: bool = True) -> list[int]:
    """Return tokens that the tokenizer would not choose: one per byte, and the end of the turn."""
    ids = [token for letter in text for token in calls.tokenizer(letter, add_special_tokens=False)["input_ids"]]
    assert calls.encoder.chat
    return [*ids, calls.encoder.chat.end] if ended else ids


def test_what_was_sampled_stays_token_by_token_and_only_answers_are_encoded(play: Play, calls: ToolCalls) -> None:
    (done,) = play([BUY, DEAR, "Done."])

    turns = [spelled(calls, text) for text in (BUY, DEAR, "Done.")]
    start = calls.encoder.messages([*ASKED, *done.messages[:1]])
    answers = [calls.encoded([message]) for message in done.messages if message["role"] == "tool"]
    assert done.ids == turns[0] + answers[0] + turns[1] + answers[1] + turns[2]
    lengths = [(1, turns[0]), (0, answers[0]), (1, turns[1]), (0, answers[1]), (1, turns[2])]
    assert done.mask == [bit for bit, ids in lengths for _ in ids]
    assert done.logprobs == [-0.5 * bit for bit in done.mask]
    assert len(start) != len(done.prompt) + len(turns[0]), "the tokenizer has other tokens for what was sampled"


def test_the_text_is_what_the_chat_template_renders(play: Play, calls: ToolCalls) -> None:
    (done,) = play([BUY, DEAR, "Done."])

    row = {"messages": [*done.row["prompt"], *done.messages], "tools": calls.schemas}
    rendered = calls.tokenizer.decode(calls.encoder._render(row, row["messages"]))
    assert rendered.rstrip("\n") == calls.tokenizer.decode(done.prompt + done.ids)
    assert [message["role"] for message in done.messages] == ["assistant", "tool"] * 2 + ["assistant"]
    assert done.messages[1]["content"] == "bought tea"
    assert done.messages[3]["content"] == "{'error': 'tea costs 9, you have 2'}"
    assert done.row["prompt"] == [{"role": "user", "content": "Buy tea. You have 3 coins."}]
    assert done.final.state["bought"] == ["tea"]


def test_conversations_of_different_lengths_are_sampled_together(play: Play) -> None:
    done = play(["Nothing."], [BUY, BUY, "Done."], [DEAR, "No."])

    assert [one.turns for one in done] == [1, 3, 2]
    assert totals(counts(done)) == {"turns": 2.0, "tool_calls": 1.0, "tool_errors": 1 / 3, "environments_lost": 0.0}


def test_the_last_turn_s_calls_are_run_but_not_answered(play: Play, calls: ToolCalls) -> None:
    (done,) = play([BUY, BUY, BUY], max_turns=2)

    assert done.ids[-1] == spelled(calls, BUY)[-1] and done.mask[-1] == 1
    assert done.final.state["bought"] == ["tea", "tea"]
    assert done.messages[-1]["role"] == "tool"


def test_a_conversation_ends_where_its_tokens_do(play: Play, calls: ToolCalls) -> None:
    first = len(spelled(calls, BUY))

    (no_room_for_the_answer,) = play([BUY, BUY], new=first + 2)
    (cut,) = play([BUY, BUY + BUY], new=2 * first)

    assert len(no_room_for_the_answer.ids) == first and no_room_for_the_answer.turns == 1
    assert len(cut.ids) == 2 * first == len(cut.mask) == len(cut.logprobs) and cut.turns == 2


def test_a_call_in_a_turn_that_did_not_end_is_not_run(play: Play) -> None:
    (done,) = play([BUY], ended=False)

    assert done.calls == 0 and done.final.state["bought"] == []


def test_a_lost_environment_ends_its_conversation_alone(play: Play) -> None:
    lost, other = play([LEAVE, "?"], [BUY, "Done."])

    assert lost.final.lost and lost.turns == 1 and lost.errors == 1
    assert not other.final.lost and other.turns == 2


@pytest.mark.parametrize(
    "text", ["<tool_call>{}</tool_call>", "<tool_call>[1]</tool_call>", "<tool_call>buy", "</tool_call>"]
)
def test_malformed_calls_are_text(calls: ToolCalls, text: str) -> None:
    message: Any = calls.message(spelled(calls, text), [])

    assert message == {"role": "assistant", "content": text}
