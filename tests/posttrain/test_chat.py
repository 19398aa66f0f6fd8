"""The chat template to tune a model with, and the end of a turn."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer
from trl.chat_template_utils import is_chat_template_stop_token_trained, qwen3_chat_template

from baton.tasks.data.tokenizer import CHAT_TEMPLATE
from baton.tasks.models.tokenizers import load
from baton.tasks.posttrain.chat import chat_of
from baton.tasks.posttrain.encode import IGNORED, RowEncoder, RowRefused
from tests.tokenizer_folders import BEGIN, CHATML, END, PAD, TURNS, byte_level, folder

ASKED = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2 + 2?"}]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
WITH_TOOLS: list[dict[str, Any]] = [
    *ASKED,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "name": "add", "content": "4"},
    {"role": "assistant", "content": "4."},
]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
WITHOUT_MARKS = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"


@pytest.fixture
def with_turns(tokenizer: Any) -> Any:
    """A tokenizer with ChatML's tokens."""
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken("<|im_start|>"), AddedToken("<|im_end|>")]})
    return tokenizer


def learned_text(tokenizer: Any, messages: list[dict[str, Any]], **columns: Any) -> str:
    """Return the text of the assistant's turns that has a loss."""
    found = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True, **columns)
    return str(tokenizer.decode([i for i, m in zip(found["input_ids"], found["assistant_masks"], strict=True) if m]))


def test_a_tokenizer_without_a_template_gets_chatml_with_marks(with_turns: Any) -> None:
    chat = chat_of(with_turns)

    assert chat.given and chat.marked
    assert with_turns.decode([chat.end]) == "<|im_end|>"
    assert is_chat_template_stop_token_trained(with_turns)
    assert with_turns.apply_chat_template(ASKED, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_chatml_begins_with_bos_where_the_tokenizer_adds_one(tmp_path: Path) -> None:
    tokenizer = load(folder(tmp_path, byte_level(END, PAD, BEGIN, *TURNS, begin=BEGIN)))
    encoder = RowEncoder(tokenizer)
    assert tokenizer.decode(encoder.prompt({"prompt": ASKED})[:2]) == f"{BEGIN}<|im_start|>"
    assert encoder.chat and encoder.chat.marked and encoder.chat.given


@pytest.mark.parametrize("begins", ["", "{{ bos_token }}"])
def test_chatml_begins_as_the_model_s_own_does(begins: str, tmp_path: Path) -> None:
    bpe = byte_level(END, PAD, BEGIN, *TURNS, begin=BEGIN)
    tokenizer = load(folder(tmp_path, bpe, chat_template=begins + CHATML, bos_token=BEGIN))
    before = tokenizer.apply_chat_template(ASKED, tokenize=False, add_generation_prompt=True)
    encoder = RowEncoder(tokenizer)
    assert tokenizer.decode(encoder.prompt({"prompt": ASKED})) == before
    assert encoder.chat and encoder.chat.marked


def test_of_several_templates_each_row_gets_its_own(tmp_path: Path) -> None:
    templates = {"default": WITHOUT_MARKS, "tool_use": "TOOLS " + WITHOUT_MARKS.replace("eos_token", "'<|im_end|>'")}
    named = [{"name": name, "template": text} for name, text in templates.items()]
    place = folder(tmp_path, byte_level(END, PAD, *TURNS), chat_template=named)
    encoder = RowEncoder(load(place))
    with_tools = encoder.tokenizer.decode(encoder.prompt({"prompt": ASKED, "tools": TOOLS}))
    assert with_tools == "TOOLS [system] Be short.<|im_end|>[user] 2 + 2?<|im_end|>"
    assert encoder.tokenizer.decode(encoder.prompt({"prompt": ASKED})) == f"[system] Be short.{END}[user] 2 + 2?{END}"
    assert encoder.ends == [3, 0]  # the ends of turns of both templates


def test_without_a_token_for_the_end_of_a_turn_the_end_of_text_ends_it(tokenizer: Any) -> None:
    chat = chat_of(tokenizer)

    assert chat.end == tokenizer.eos_token_id
    assert learned_text(tokenizer, [*ASKED, {"role": "assistant", "content": "4."}]) == "4.<|endoftext|>"


def test_tools_and_their_calls_are_kept(with_turns: Any) -> None:
    chat_of(with_turns)
    text = with_turns.apply_chat_template(WITH_TOOLS, tools=TOOLS, tokenize=False)

    assert text.startswith("<|im_start|>system\nBe short.\n\n# Tools\n")
    assert json.dumps(TOOLS[0]) in text and "<|im_start|>tool\n4<|im_end|>" in text
    assert learned_text(with_turns, WITH_TOOLS, tools=TOOLS) == (
        '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call><|im_end|>4.<|im_end|>'
    )


def test_batons_template_is_replaced_by_its_marked_form_which_renders_the_same(with_turns: Any) -> None:
    with_turns.chat_template = CHAT_TEMPLATE
    messages = [*ASKED, {"role": "assistant", "content": "4."}]
    before = with_turns.apply_chat_template(messages, tokenize=False)

    chat = chat_of(with_turns)

    assert chat.given and chat.marked
    assert with_turns.apply_chat_template(messages, tokenize=False) == before


def test_a_well_known_template_is_tuned_with_its_marked_form_and_stays_what_it_is(with_turns: Any) -> None:
    with_turns.chat_template = qwen3_chat_template

    chat = chat_of(with_turns)

    assert chat.marked and not chat.given
    assert with_turns.decode([chat.end]) == "<|im_end|>"


def test_an_unknown_template_has_no_marks_and_ends_turns_as_it_says(tokenizer: Any) -> None:
    tokenizer.chat_template = WITHOUT_MARKS

    chat = chat_of(tokenizer)

    assert (chat.marked, chat.given, chat.template) == (None, False, WITHOUT_MARKS)
    assert chat.end == tokenizer.eos_token_id


def test_the_end_of_a_turn_ends_generation_beside_what_ended_it_before(
    model: Path, with_turns: Any, tmp_path: Path
) -> None:
    made = Path(shutil.copytree(model, tmp_path / "made"))
    encoder = RowEncoder(with_turns)
    encoder.prompt({"prompt": ASKED})
    assert encoder.chat

    encoder.write(made)

    assert json.loads((made / "generation_config.json").read_text())["eos_token_id"] == [0, encoder.chat.end]
    assert AutoTokenizer.from_pretrained(made).chat_template == encoder.chat.template


def test_a_model_with_a_template_whose_turns_end_as_its_texts_do_stays_as_it_is(
    model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    made = Path(shutil.copytree(model, tmp_path / "made"))
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    tokenizer.chat_template = WITHOUT_MARKS
    encoder = RowEncoder(tokenizer)
    encoder.prompt({"prompt": ASKED})

    encoder.write(made)

    assert {path.name: path.read_bytes() for path in made.iterdir()} == before


def test_a_model_tuned_on_text_stops_at_the_end_of_text_that_it_learns(model: Path, tmp_path: Path) -> None:
    """Transformers' generate uses only the tokens of generation_config.json, and not those of the tokenizer."""
    made = Path(shutil.copytree(model, tmp_path / "made"))
    (made / "generation_config.json").write_text(json.dumps({"eos_token_id": 5, "temperature": 0.7}))
    encoder = RowEncoder(load(made))
    assert encoder.learned({"prompt": "2 + 2 =", "completion": " 4"}, "completion")[0][-1] == 0

    encoder.write(made)

    assert json.loads((made / "generation_config.json").read_text()) == {"eos_token_id": [5, 0], "temperature": 0.7}


# Templates that reject conversations of an unexpected form

TURN = (
    "<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}\n"
)
ALL_TURNS = f"{{% for m in messages %}}{TURN}{{% endfor %}}"
WANTS = {
    "tools": "{% for tool in tools %}{{ tool.function.name }}\n{% endfor %}" + ALL_TURNS,
    "a system message": "{{ raise_exception('no system') if messages[0].role != 'system' }}" + ALL_TURNS,
    "a date": "{{ date + '\n' }}" + ALL_TURNS,
}
ANSWERED: list[dict[str, Any]] = [*ASKED, {"role": "assistant", "content": "4."}]
GIVEN = {"tools": TOOLS, "chat_template_kwargs": {"date": "1 May"}}


@pytest.mark.parametrize("wants", WANTS)
@pytest.mark.parametrize("several", [True, False])
def test_a_turn_ends_where_the_template_ends_it_with_what_it_needs(wants: str, several: bool, tmp_path: Path) -> None:
    named = [{"name": "default", "template": "{{ 1 / 0 }}"}, {"name": "tool_use", "template": WANTS[wants]}]
    template = named if several else WANTS[wants]
    encoder = RowEncoder(load(folder(tmp_path, byte_level(END, PAD, *TURNS), chat_template=template)))

    _, labels = encoder.learned({"messages": ANSWERED, **GIVEN}, "assistant")

    end = encoder.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert encoder.ends == [end]
    assert encoder.tokenizer.decode([label for label in labels if label != IGNORED]) == "4.<|im_end|>"
    assert encoder.completion({"prompt": ASKED, "completion": ANSWERED[-1:], **GIVEN})[1][-1] == end


def test_a_conversation_that_the_template_rejects_says_nothing_of_the_others(tmp_path: Path) -> None:
    place = folder(tmp_path, byte_level(END, PAD, *TURNS), chat_template=WANTS["a system message"])
    encoder = RowEncoder(load(place))
    with pytest.raises(RowRefused, match="rejects a row: no system"):
        encoder.learned({"messages": ANSWERED[1:]}, "assistant")
    encoder.learned({"messages": ANSWERED}, "assistant")
    assert encoder.tokenizer.convert_ids_to_tokens(encoder.ends) == ["<|im_end|>"]


def test_a_template_of_prompts_alone_does_not_make_the_begin_of_a_turn_its_end(tmp_path: Path) -> None:
    asks = "{% for m in messages if m.role == 'user' %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    encoder = RowEncoder(load(folder(tmp_path, byte_level(END, PAD, *TURNS), chat_template=asks)))
    encoder.prompt({"prompt": ASKED})
    assert encoder.tokenizer.convert_ids_to_tokens(encoder.ends) == [END]


def test_a_turn_with_calls_may_end_with_a_token_of_its_own(tmp_path: Path) -> None:
    """In gpt-oss, generation also stops at this token, and the token is learned."""
    call = "{{ m.tool_calls[0].function | tojson }}<|call|>"
    said = "{{ m.content }}<|im_end|>"
    template = ALL_TURNS.replace(said, f"{{% if m.tool_calls %}}{call}{{% else %}}{said}{{% endif %}}", 1)
    encoder = RowEncoder(load(folder(tmp_path, byte_level(END, PAD, *TURNS, "<|call|>"), chat_template=template)))
    asked = [*ASKED, {"role": "assistant", "content": "", "tool_calls": [CALL]}]

    _, labels = encoder.learned({"messages": asked, "tools": TOOLS}, "assistant")

    names = encoder.tokenizer.convert_ids_to_tokens
    assert names(encoder.ends) == ["<|im_end|>", "<|call|>"]
    assert names([label for label in labels if label != IGNORED])[-1] == "<|call|>"
    assert names(encoder.completion({"prompt": ASKED, "completion": asked[-1:], "tools": TOOLS})[1])[-1] == "<|call|>"
