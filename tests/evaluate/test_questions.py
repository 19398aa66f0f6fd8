"""The prompts and references of each kind of row, and the selection of rows."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from baton.tasks.core.job import StageError
from baton.tasks.data.documents import SplitWriter, document
from baton.tasks.evaluate import held_out
from baton.tasks.evaluate.model_info import ModelInfo, read_model_info
from baton.tasks.evaluate.questions import Question, Questions, choose, question_of
from baton.tasks.evaluate.spec import EvaluatorSpec
from baton.tasks.models.tokenizers import load, plain
from baton.tasks.posttrain.encode import RowEncoder
from baton.tasks.posttrain.rows import in_order
from tests.posttrain.tiny import tiny_model
from tests.tokenizer_folders import BEGIN, END, PAD, byte_level, folder

USER, ASSISTANT = {"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello."}


@pytest.mark.parametrize(
    ("row", "prompt", "reference"),
    [
        ({"prompt": "1 + 1", "completion": " = 2"}, "1 + 1", " = 2"),
        ({"prompt": "1 + 1", "answer": "2"}, "1 + 1", "2"),
        ({"prompt": "1 + 1", "depth": 7}, "1 + 1", None),
        ({"prompt": [USER], "completion": [ASSISTANT]}, [USER], [ASSISTANT]),
        ({"messages": [USER, ASSISTANT, USER, ASSISTANT]}, [USER, ASSISTANT, USER], [ASSISTANT]),
        ({"messages": [USER]}, [USER], None),
        ({"prompt": "Say", "chosen": " yes", "rejected": " no"}, "Say", " yes"),
        ({"chosen": [USER, ASSISTANT], "rejected": [USER, USER]}, [USER], [ASSISTANT]),
    ],
)
def test_each_kind_of_row_has_a_prompt_and_perhaps_a_reference(
    row: dict[str, Any], prompt: Any, reference: Any
) -> None:
    assert question_of("sums", row) == (prompt, reference)


def test_a_text_asks_nothing() -> None:
    with pytest.raises(StageError, match=r"evaluate.sums.data: .*and no prompt"):
        question_of("sums", {"text": "Once."})


@pytest.mark.parametrize(("begin", "start"), [("", [0]), (BEGIN, [2])])
def test_held_out_text_follows_bos_or_the_end_of_a_document(begin: str, start: list[int], tmp_path: Path) -> None:
    """The shards have these tokens too. A model that has always seen BOS predicts badly without it (lm-eval#1465)."""
    place = folder(tmp_path / "model", byte_level(END, PAD, BEGIN, begin=begin))
    (tmp_path / "corpus").mkdir()
    writer = SplitWriter(tmp_path / "corpus", "held_out")
    writer.add(document("river.txt", f"The river was calm. {END} {BEGIN}"))
    writer.close()
    model = ModelInfo(place, "base", 64, 0, plain(place))
    (window,) = held_out.choose("corpus", tmp_path / "corpus", model, 1000).windows
    assert window.tokens[: window.context] == start
    assert not {0, 2} & set(window.tokens[window.context :])  # special tokens in a text are ordinary text


def info(folder: Path, positions: int) -> ModelInfo:
    """Return the facts of a model whose tokens are words."""
    tokenizer = Tokenizer(models.WordLevel({"[unknown]": 0}, unk_token="[unknown]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return ModelInfo(folder, "base", positions, 0, plain(folder))


def rows(folder: Path, *prompts: str) -> Path:
    folder.mkdir()
    (folder / "held_out.jsonl").write_text("".join(json.dumps({"prompt": each}) + "\n" for each in prompts))
    return folder


def asked(folder: Path, **spec: Any) -> Questions:
    expected = EvaluatorSpec.model_validate({"data": "sums", "rewards": ["match"], "max_new_tokens": 4, **spec})
    return choose("sums", folder, expected, info(folder, 10), seed=1)


def test_training_rows_are_asked_in_the_order_in_which_post_training_takes_them(tmp_path: Path) -> None:
    rows(tmp_path / "rows", "held out")
    lines = "".join(json.dumps({"prompt": f"row {number}"}) + "\n" for number in range(50))
    (tmp_path / "rows" / "train.jsonl").write_text(lines)
    spec = EvaluatorSpec.model_validate({"data": "sums", "rewards": ["match"], "max_new_tokens": 4, "train_prompts": 7})
    found = choose("sums", tmp_path / "rows", spec, info(tmp_path / "rows", 10), seed=1, split="train")
    trained_on = islice(in_order(tmp_path / "rows" / "train.jsonl", seed=1), 7)
    assert prompts(found) == [row["prompt"] for row in trained_on]


def test_a_set_without_training_rows_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    rows(tmp_path / "rows", "held out")
    (tmp_path / "rows" / "train.jsonl").touch()
    spec = EvaluatorSpec.model_validate({"data": "sums", "rewards": ["match"], "train_prompts": 7, "max_new_tokens": 4})
    with pytest.raises(StageError, match="no usable training row: it has none; set train_prompts: 0"):
        choose("sums", tmp_path / "rows", spec, info(tmp_path / "rows", 10), seed=1, split="train")


def prompts(found: Questions) -> list[Any]:
    return [each.prompt for each in found.questions]


def test_rows_are_chosen_by_content_not_by_position(tmp_path: Path) -> None:
    said = [f"question {number}" for number in range(50)]
    first = prompts(asked(rows(tmp_path / "a", *said), prompts=10))
    assert prompts(asked(rows(tmp_path / "b", *said[::-1]), prompts=10)) == first
    fewer = [each for each in said if each not in first[:3]]
    assert prompts(asked(rows(tmp_path / "c", *fewer), prompts=7)) == first[3:]


def test_rows_without_room_for_an_answer_are_counted(tmp_path: Path) -> None:
    found = asked(rows(tmp_path / "a", "a b c d e f", "a b c d e f g"))
    assert (prompts(found), found.too_long) == (["a b c d e f"], 1)


def test_no_row_to_ask_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"sums: the set has no usable held-out row.*all 1 held-out rows are too long"):
        asked(rows(tmp_path / "long", "a b c d e f g"))
    with pytest.raises(StageError, match="its held-out split is empty"):
        asked(rows(tmp_path / "empty"))


def test_a_row_s_options_reach_the_chat_template(tmp_path: Path) -> None:
    """An example is Qwen3's enable_thinking: a prompt is rendered as in post-training."""
    chat = tiny_model(tmp_path / "model", turns=True)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if think %} x x x{% endif %}"
    (chat / "chat_template.jinja").write_text(template)
    model, row = read_model_info(chat), {"prompt": [USER]}
    (tmp_path / "held_out.jsonl").write_text(json.dumps(row | {"chat_template_kwargs": {"think": True}}) + "\n")
    (question,) = choose("sums", tmp_path, EvaluatorSpec(data="sums"), model, seed=1).questions
    assert model.tokenizer.decode(question.tokens) == "Hello? x x x"
    assert question.tokens == RowEncoder(load(chat)).prompt(row | {"chat_template_kwargs": {"think": True}})


def test_rewards_get_the_columns_of_training() -> None:
    """In GRPO the completion is a conversation's last turn, and there is no completion of a row with a prompt and an
    answer."""
    said = [{"role": "assistant", "content": "4"}]
    conversation = {"messages": [{"role": "user", "content": "2 + 2?"}, *said]}
    prompt, reference = question_of("mine", conversation)
    assert Question("", conversation, prompt, reference, []).scored == conversation | {"completion": said}
    row = {"prompt": "2 + 2?", "answer": "4"}
    prompt, reference = question_of("mine", row)
    assert reference == "4"
    assert Question("", row, prompt, reference, []).scored == row


@pytest.mark.parametrize("label", [{"label": False}, {"kto_tag": "false"}], ids=str)
def test_an_answer_to_avoid_is_no_reference(label: dict[str, Any]) -> None:
    conversation = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "5"}]
    assert question_of("mine", {"messages": conversation, **label}) == (conversation[:1], None)
    assert question_of("mine", {"messages": conversation, "label": True})[1] == conversation[1:]
