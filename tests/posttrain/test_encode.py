"""Tokenization of rows."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Whitespace

from baton.tasks.core.job import StageError
from baton.tasks.models.tokenizers import load
from baton.tasks.posttrain.chat import marked_tokens
from baton.tasks.posttrain.encode import IGNORED, Loss, RowEncoder, RowRefused, prompted
from baton.tasks.posttrain.trl_hooks.templates import trl_templates
from baton.tasks.posttrain.unprinted import Unprinted
from baton.tasks.rows.stored import Row, without_marks
from tests.tokenizer_folders import byte_level, folder, metaspace

ASKED = [{"role": "user", "content": "2 + 2?"}]
SAID = [{"role": "assistant", "content": "4."}]


@pytest.fixture
def encoder(tokenizer: Any) -> RowEncoder:
    return RowEncoder(tokenizer)


def learned(encoder: RowEncoder, row: dict[str, Any], loss: Any) -> tuple[str, str]:
    """Return the entire sequence and the tokens with a loss, both as text."""
    ids, labels = encoder.learned(row, loss)
    assert all(label in (IGNORED, token) for token, label in zip(ids, labels, strict=True))
    text = encoder.tokenizer.decode
    return text(ids), text([label for label in labels if label != IGNORED])


def test_a_text_is_learned_whole_with_its_end(encoder: RowEncoder) -> None:
    assert learned(encoder, {"text": "a b"}, "all") == ("a b<|endoftext|>",) * 2
    assert learned(encoder, {"text": "a b<|endoftext|>"}, "all") == ("a b<|endoftext|>",) * 2
    assert encoder.chat is None


CALL = {"type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
NULL_ASKED = (  # a condition that templates for OpenAI's format may contain
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
    "{% if m.content is none %}{{ m.tool_calls[0].function | tojson }}{% else %}{{ m.content }}{% endif %}"
    "<|endoftext|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


def test_a_template_sees_null_beside_calls(encoder: RowEncoder) -> None:
    encoder.tokenizer.chat_template = NULL_ASKED
    call = '{"name": "look", "arguments": {"at": "it"}}<|endoftext|>'

    assert learned(encoder, {"messages": [*ASKED, CALLS]}, "assistant") == (f"2 + 2?{call}", call)


@pytest.mark.parametrize("loss", ["assistant", "all"])
def test_a_template_that_prints_none_for_null_is_refused(encoder: RowEncoder, loss: Loss) -> None:
    """The model would learn the word "None"."""
    encoder.tokenizer.chat_template = NULL_ASKED.replace("m.content is none", "m.tool_calls is undefined")
    with pytest.raises(RowRefused, match='prints the word "None" for content: null; write "" or leave the field out'):
        encoder.learned({"messages": [*ASKED, CALLS]}, loss)
    assert encoder.learned({"messages": [*ASKED, CALLS | {"content": "None"}]}, loss)


def test_special_tokens_that_begin_and_end_a_thought_are_decoded(encoder: RowEncoder) -> None:
    """Other special tokens are not decoded. Without the end of a thought, the answer could not be separated from the
    thought."""
    encoder.tokenizer.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]", "[END]", "[X]"]})
    ids = encoder.tokenizer("[X][THINK]It is 7.[/THINK]42[END]")["input_ids"]
    assert encoder.decoded(ids) == "[THINK]It is 7.[/THINK]42"
    assert encoder.decoded(ids, think_end="[X]") == "[X][THINK]It is 7.[/THINK]42"
    assert encoder.decoded([]) == ""


def test_of_a_prompt_and_its_completion_the_completion_and_its_end_are_learned(encoder: RowEncoder) -> None:
    row = {"prompt": "2 + 2 =", "completion": " 4"}

    assert learned(encoder, row, "completion") == ("2 + 2 = 4<|endoftext|>", " 4<|endoftext|>")
    assert learned(encoder, row | {"text": "of a column for rewards"}, "all")[0] == "2 + 2 = 4<|endoftext|>"
    assert learned(encoder, row, "all") == ("2 + 2 = 4<|endoftext|>",) * 2


def test_a_prompt_is_the_same_tokens_alone_and_before_its_completion(encoder: RowEncoder) -> None:
    """If both were encoded together, "re" and "turn" would be one token, which never occurs at inference."""
    tokenizer = encoder.tokenizer
    row = {"prompt": "re", "completion": "turn"}
    together = tokenizer("return")["input_ids"]
    assert together[: len(encoder.prompt(row))] != encoder.prompt(row)

    assert encoder.completion(row) == (tokenizer("re")["input_ids"], [*tokenizer("turn")["input_ids"], 0])


def prepended() -> Tokenizer:
    """Return `metaspace` with a normalizer that adds the space."""
    content = json.loads(metaspace().to_str())
    content["pre_tokenizer"] = None
    steps = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    content["normalizer"] = {"type": "Sequence", "normalizers": steps}
    return Tokenizer.from_str(json.dumps(content))


def prefixed() -> Tokenizer:
    """Return a byte-level tokenizer that adds a space, as some of RoBERTa's kind do."""
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=True)
    return tokenizer


@pytest.mark.parametrize("made", [metaspace, prepended, prefixed, byte_level])
def test_a_completion_has_no_space_that_the_tokenizer_puts_before_a_text(
    made: Callable[[], Tokenizer], tmp_path: Path
) -> None:
    special = {"eos_token": "</s>", "pad_token": "<unk>"} if made in (metaspace, prepended) else {}
    encoder = RowEncoder(load(folder(tmp_path, made(), **special)))
    for text in ("(b)\n", " (b)", "b", "'s", "\n\n  b", "\tb", "漢字", "4", "  ", "", "b\U0010fffd"):
        row = {"prompt": "return a +", "completion": text}
        prompt, completion = encoder.completion(row)
        assert encoder.tokenizer.decode(prompt + completion[:-1]).lstrip() == f"return a +{text}"
        (ahead,) = encoder.ahead([row])
        assert encoder.completion(ahead) == (prompt, completion)


def test_of_messages_the_assistants_turns_and_their_ends_are_learned(encoder: RowEncoder) -> None:
    row = {"messages": [*ASKED, *SAID, {"role": "user", "content": "3 + 3?"}, {"role": "assistant", "content": "6."}]}

    whole, said = learned(encoder, row, "assistant")

    assert said == "4.<|endoftext|>6.<|endoftext|>"
    assert whole.startswith("<|im_start|>user\n2 + 2?") and learned(encoder, row, "all") == (whole, whole)
    assert encoder.chat and encoder.chat.given


def test_prompt_and_completion_may_be_messages_and_end_with_the_turn(encoder: RowEncoder) -> None:
    row = {"prompt": ASKED, "completion": SAID}

    prompt, completion = encoder.completion(row)

    assert prompt == encoder.prompt(row)
    assert encoder.tokenizer.decode(prompt).endswith("<|im_start|>assistant\n")
    assert encoder.tokenizer.decode(completion) == "4.<|endoftext|>"


def test_messages_ask_for_their_last_turn() -> None:
    row = {"messages": [*ASKED, *SAID], "topic": "sums"}

    assert prompted(row) == {"prompt": ASKED, "completion": SAID, "topic": "sums"}
    assert prompted({"prompt": "2 + 2 ="}) == {"prompt": "2 + 2 ="}


def test_chosen_and_rejected_are_completions_too(encoder: RowEncoder) -> None:
    row = {"prompt": "2 + 2 =", "chosen": " 4", "rejected": " 5"}

    assert encoder.tokenizer.decode(encoder.completion(row, "rejected")[1]) == " 5<|endoftext|>"


def test_tools_are_part_of_the_prompt(encoder: RowEncoder) -> None:
    row = {"prompt": ASKED, "tools": [{"type": "function", "function": {"name": "add_up"}}]}

    assert '"name": "add_up"' in encoder.tokenizer.decode(encoder.prompt(row))


def test_a_template_without_marks_is_named_before_anything_is_trained(encoder: RowEncoder) -> None:
    encoder.tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    row = {"messages": [*ASKED, *SAID]}

    with pytest.raises(StageError) as error:
        encoder.learned(row, "assistant")
    assert str(error.value) == (
        "loss: assistant is not possible. The chat template '{% for m in messages %}[{{ m.role }}] {{ m.content "
        "}}{% endfor %}' has no {% generation %} marks; put {% generation %} and {% endgeneration %} around what the "
        "assistant writes, in the model's chat_template.jinja, or use loss: all."
    )
    assert encoder.learned(row, "all")


def test_a_template_that_does_not_parse_says_so(encoder: RowEncoder) -> None:
    encoder.tokenizer.chat_template = "{% for m in messages %}{{ m.content {% endfor %}"
    with pytest.raises(RowRefused, match="rejects a row: expected token 'end of print statement'"):
        encoder.learned({"messages": [*ASKED, *SAID]}, "assistant")


def test_a_prompt_is_the_model_s_own_also_where_trl_s_template_with_marks_differs(encoder: RowEncoder) -> None:
    """Qwen3's template leaves out the thoughts of earlier turns, and so does a served model; TRL's template keeps
    them."""
    encoder.tokenizer.chat_template = trl_templates()["qwen3"][0]
    encoder.tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    turns = [*ASKED, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n4."}, *ASKED]
    assert "hm" not in encoder.tokenizer.decode(encoder.prompt({"prompt": turns}))
    assert encoder.notices() == []

    encoder.learned({"messages": [*turns, *SAID]}, "assistant")
    assert encoder.notices()[0].startswith("1 conversations are learned as TRL's template with marks renders them")


def test_a_prompt_that_is_rendered_otherwise_before_an_answer_is_counted(encoder: RowEncoder) -> None:
    """An example is a prompt that ends with the beginning of a thought, which the template does not print before an
    answer."""
    encoder.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: <think>{% endif %}"
    )
    encoder.completion({"prompt": ASKED, "completion": SAID})
    assert encoder.notices()[0].startswith(
        "1 prompts are learned as the chat template renders them before their answer"
    )


def test_a_row_that_the_template_refuses_is_named(encoder: RowEncoder) -> None:
    encoder.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )

    assert encoder.prompt({"prompt": ASKED})
    with pytest.raises(StageError, match=r"rejects a row: no system role\. Change the row.*The row: {.*Be brief"):
        encoder.prompt({"prompt": [{"role": "system", "content": "Be brief."}, *ASKED]})


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ 1 // (messages | length - 1) }}", "ZeroDivisionError"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "OverflowError: Range too big"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "RecursionError"),
        ("{{ {}.pop(messages[0].content) }}", "SecurityError|KeyError"),
        ("{{ 'x'.encode('no such') }}", "LookupError"),
    ],
)
def test_whatever_a_template_raises_is_a_row_that_it_refuses(encoder: RowEncoder, template: str, said: str) -> None:
    encoder.tokenizer.chat_template = template
    with pytest.raises(RowRefused, match=rf"rejects a row: .*({said}|unsafe|immutable)"):
        encoder.prompt({"prompt": ASKED})


def test_an_empty_loss_mask_is_an_error_that_names_template_and_row(encoder: RowEncoder) -> None:
    encoder.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'bot' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )

    with pytest.raises(StageError) as error:
        encoder.learned({"messages": [*ASKED, *SAID]}, "assistant")
    said = str(error.value)
    assert said.startswith('a row has no token to learn with loss: assistant. The chat template "{% for m in mess')
    assert "marks no token of a turn that is to be learned" in said
    assert 'The row: {"messages": [{"role": "user", "content": "2 + 2?"}' in said


def test_a_turn_that_is_not_to_be_learned_has_no_loss(encoder: RowEncoder) -> None:
    bad = {"role": "assistant", "content": "5."}
    row = {"messages": [*ASKED, bad | {"train": False}, *ASKED, *SAID]}
    whole, said = learned(encoder, row, "assistant")
    assert said == "4.<|endoftext|>" and "5.<|endoftext|>" in whole and "train" not in whole
    assert whole == learned(encoder, {"messages": [*ASKED, bad, *ASKED, *SAID]}, "assistant")[0]
    with pytest.raises(StageError, match="loss: all learns turns that are not to be learned"):
        encoder.learned(row, "all")
    with pytest.raises(StageError, match="the last turn of a row is not to be learned"):
        prompted({"messages": [*ASKED, *SAID, *ASKED, bad | {"train": False}]})


def test_a_turn_left_out_is_found_whatever_number_of_its_parts_the_template_marks(encoder: RowEncoder) -> None:
    """A template may mark no part of a call, or mark thought and content separately."""
    encoder.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.tool_calls %}{{ 'called' + eos_token }}{% elif m.role == 'assistant' %}"
        "{% generation %}{{ m.reasoning_content }}{% endgeneration %}{{ ': ' }}"
        "{% generation %}{{ m.content + eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    call = {"type": "function", "function": {"name": "add", "arguments": {}}}

    def learned_with(first: bool, last: bool) -> str:
        called = [
            {"role": "assistant", "content": "", "tool_calls": [call], "train": first},
            {"role": "tool", "content": "4"},
        ]
        answer = {"role": "assistant", "reasoning_content": "hm", "content": "4.", "train": last}
        other = {"role": "assistant", "reasoning_content": "so", "content": "5."}
        return learned(encoder, {"messages": [*ASKED, *called, answer, *ASKED, other]}, "assistant")[1]

    assert learned_with(True, True) == learned_with(False, True) == "hm4.<|endoftext|>so5.<|endoftext|>"
    assert learned_with(True, False) == "so5.<|endoftext|>"


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.role + ': ' + m.content }}\n{% endfor %}",  # ends turns with text
        "{% for m in messages %}{{ m.role + ': ' + m.content }}{{ '' if loop.last else eos_token }}{% endfor %}",
    ],
)
def test_a_conversation_ends_where_generation_does_also_if_the_template_does_not_end_it(
    encoder: RowEncoder, template: str
) -> None:
    encoder.tokenizer.chat_template = template
    whole, said = learned(encoder, {"messages": [*ASKED, *SAID]}, "all")
    assert said == whole and whole.rstrip().endswith("<|endoftext|>")
    assert encoder.ends == [encoder.tokenizer.eos_token_id]


@pytest.mark.parametrize("loss", ["assistant", "all"])
def test_tools_that_the_template_does_not_print_are_reported(encoder: RowEncoder, loss: Loss) -> None:
    encoder.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    encoder.learned({"messages": [*ASKED, *SAID], "tools": [tool]}, loss)
    assert [notice[:40] for notice in encoder.notices()] == ["the chat template does not print tools i"]


def test_no_turn_is_left_out_where_the_template_marks_other_parts_once_others_follow(encoder: RowEncoder) -> None:
    encoder.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'assistant' and loop.index > messages | length - 2 %}"
        "{% generation %}{{ m.content + eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    with pytest.raises(RowRefused, match="marks other parts of earlier turns when later ones follow"):
        encoder.learned({"messages": [*ASKED, *SAID, *ASKED, SAID[0] | {"content": "5.", "train": False}]}, "assistant")


def test_a_last_turn_is_left_out_also_if_it_alone_has_the_end_of_turn(encoder: RowEncoder) -> None:
    """GPT-OSS's template ends the last turn this way."""
    encoder.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{{ eos_token if loop.last else ';' }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    row = {"messages": [*ASKED, *SAID, *ASKED, SAID[0] | {"content": "5.", "train": False}]}
    assert learned(encoder, row, "assistant")[1] == "4.;"


def test_answers_that_are_equal_once_rendered_are_no_preference(encoder: RowEncoder) -> None:
    encoder.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content | trim + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    row = {"prompt": ASKED, "chosen": SAID, "rejected": [SAID[0] | {"content": "5."}]}
    assert len(encoder.preference(row)) == 2
    with pytest.raises(RowRefused, match="chosen and rejected are the same tokens"):
        encoder.preference(row | {"rejected": [SAID[0] | {"content": "4. "}]})


@pytest.mark.parametrize("mark", [{"label": False}, {"label": "false"}, {"weight": 0}, {"rating": 5}])
def test_a_completion_that_is_not_to_be_learned_is_refused(encoder: RowEncoder, mark: dict[str, Any]) -> None:
    row = {"prompt": "2 + 2 =", "completion": " 5"}
    with pytest.raises(RowRefused, match=r"columns: {\w+: null}"):
        encoder.learned(row | mark, "completion")
    assert encoder.learned(row | {"label": True, "weight": 1}, "completion")


def test_what_the_template_does_not_print_is_reported_once(encoder: RowEncoder) -> None:
    encoder.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {% if m.role != 'tool' %}{{ m.content }}{% endif %}"
        "{% if loop.last and m.reasoning_content %}({{ m.reasoning_content }})"
        "{% elif m.reasoning_content %}\n{% endif %}\n{% endfor %}"
    )
    thought = SAID[0] | {"reasoning_content": "Hm.", "name": "Ann"}
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2}}}]}
    answer = {"role": "tool", "content": "4", "tool_call_id": "1"}
    tools = [{"type": "function", "function": {"name": "add"}}]
    row: dict[str, Any] = {
        "prompt": ASKED,
        "completion": [call, answer, thought],
        "tools": tools,
        "chat_template_kwargs": {"x": 1},
    }
    more = {"prompt": [*ASKED, thought, *ASKED], "completion": SAID}
    for each in [row, more] * 20:
        encoder.completion(each)
    told = {text.split(" in ")[0].removeprefix("the chat template does not print "): text for text in encoder.notices()}
    assert told.keys() == {
        "content of messages",
        "name of messages",
        "reasoning_content of messages",
        "tool_calls of messages",
        "tools",
        "chat_template_kwargs",
    }
    assert "in 8 of 56 places" in told["content of messages"]  # the content of the tool's messages
    assert "in 8 of 16 places" in told["reasoning_content of messages"]


THOUGHT = {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\n4"}
# DeepSeek's template
WITHOUT_THOUGHTS = (
    "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content.split('</think>')[-1] }}<|endoftext|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|endoftext|>{% endif %}\n{% endfor %}"
)


@pytest.mark.parametrize("loss", ["assistant", "all", "completion"])
def test_thoughts_that_the_template_leaves_out_of_what_is_learned_are_reported(encoder: RowEncoder, loss: Loss) -> None:
    encoder.tokenizer.chat_template = WITHOUT_THOUGHTS
    row = {"prompt": ASKED, "completion": [THOUGHT]} if loss == "completion" else {"messages": [*ASKED, THOUGHT]}
    encoder.learned(row, loss)
    assert "leaves out a part of 1 assistant turns, such as 'Two and two.'" in encoder.notices()[0]


def test_a_line_of_code_that_is_left_out_between_two_comparisons_is_reported() -> None:
    unprinted = Unprinted()
    unprinted.look_for([{"role": "assistant", "content": "if a < b:\n    swap()\nif c > d:"}], "if a < b:\nif c > d:")
    assert "such as 'swap()'" in unprinted.notices(lambda *_: "")[0]


def test_white_space_alone_is_no_content_that_is_not_printed(encoder: RowEncoder) -> None:
    call = {"role": "assistant", "content": "\n\n", "tool_calls": [CALL]}
    encoder.completion({"prompt": ASKED, "completion": [call], "tools": TOOLS})
    assert not any("content of messages" in notice for notice in encoder.notices())


def test_what_the_template_prints_is_not_reported(encoder: RowEncoder) -> None:
    for _ in range(3):
        encoder.completion({"prompt": ASKED, "completion": SAID})
        encoder.learned(
            {"messages": [{"role": "system", "content": "Be brief."}, *ASKED, *SAID, *ASKED, THOUGHT]}, "assistant"
        )
    assert encoder.notices() == []


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
PIECES = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "assistant\n", " a", "\n", "é", "e\u0301", "漢👩\u200d👧", "")
SAYINGS = st.text() | st.lists(st.sampled_from(PIECES)).map("".join)
ANSWERS = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": SAYINGS},
    optional={"train": st.booleans(), "tool_calls": st.just([CALL])},
)
ASKS = st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "tool"]), "content": SAYINGS})
TURNS = st.lists(st.tuples(ASKS, ANSWERS), min_size=1, max_size=4).map(lambda pairs: [*sum(pairs, ())])
MORE = {"tools": st.just(TOOLS), "chat_template_kwargs": st.just({"topic": "sums"})}
CONVERSATIONS = st.fixed_dictionaries({"messages": TURNS}, optional=MORE)
ANY_ROW = (
    CONVERSATIONS
    | st.fixed_dictionaries({"text": SAYINGS})
    | st.fixed_dictionaries({"prompt": SAYINGS, "completion": SAYINGS})
    | st.fixed_dictionaries({"prompt": TURNS, "completion": ANSWERS.map(lambda answer: [answer])}, optional=MORE)
)


def encoded(encoder: RowEncoder, row: Row) -> object:
    """Return the tokens that SFT learns of a row, or the reason why the row is refused."""
    try:
        return encoder.learned(row, "assistant" if "messages" in row else "all")
    except StageError as error:
        return str(error)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ANY_ROW, max_size=12))
def test_rows_are_the_same_tokens_if_their_texts_were_tokenized_ahead(tokenizer: Any, rows: list[Row]) -> None:
    ahead, alone = RowEncoder(tokenizer), RowEncoder(tokenizer)

    assert [encoded(ahead, row) for row in ahead.ahead(iter(rows))] == [encoded(alone, row) for row in rows]
    assert (ahead.chats, ahead.notices()) == (alone.chats, alone.notices())


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(row=CONVERSATIONS)
def test_the_marks_are_those_of_transformers(tokenizer: Any, row: Row) -> None:
    encoder = RowEncoder(tokenizer)
    learned = [{**message, "train": True} if message["role"] == "assistant" else message for message in row["messages"]]

    ids, labels = encoder.learned(row | {"messages": learned}, "assistant")

    theirs = tokenizer.apply_chat_template(
        without_marks(row["messages"]),
        tools=row.get("tools"),
        chat_template=encoder.chat and encoder.chat.marked,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    assert ids == theirs["input_ids"]
    assert [int(label != IGNORED) for label in labels] == theirs["assistant_masks"]


def test_no_more_texts_are_tokenized_ahead_than_before(encoder: RowEncoder) -> None:
    read = 0

    def rows() -> Iterator[Row]:
        nonlocal read
        for read in range(1, 1001):
            yield {"text": f"{read:04} is the text of a row"}

    needed = [row for row, _ in zip(encoder.ahead(rows()), range(100), strict=False)]

    assert len(needed) == 100 and read <= 200


def test_a_row_that_is_not_used_brings_no_chat(encoder: RowEncoder) -> None:
    """Otherwise the model would stop, and be saved, as if it were tuned on tools."""
    turns = {"messages": [*ASKED, *SAID]}

    for row in encoder.ahead(iter([turns] * 40 + [turns | {"tools": TOOLS}])):
        assert list(encoder.chats) in ([], [False])
        encoder.learned(row, "assistant")

    assert list(encoder.chats) == [False, True]


def test_a_template_variable_may_have_any_name(encoder: RowEncoder) -> None:
    row = {"messages": [*ASKED, *SAID]}
    named = row | {"chat_template_kwargs": {"template": "a", "tokenizer": "b"}}
    assert encoder.learned(named, "assistant") == encoder.learned(row, "assistant")


def test_a_marked_token_alone_at_the_beginning_is_the_only_one(tokenizer: Any) -> None:
    (tokens,) = tokenizer(["some text"], add_special_tokens=False).encodings
    assert sum(marked_tokens(tokens, [tokens.offsets[0]])) == 1


def test_a_range_has_its_spaces_and_nothing_after_it_where_offsets_are_trimmed() -> None:
    trimmed = Tokenizer(WordLevel({"a": 0, "b": 1, "c": 2, " a": 3, "Ġ": 4, "Ġb": 5, "Ġc": 6}, unk_token="a"))
    trimmed.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trimmed.post_processor = processors.ByteLevel(trim_offsets=True)
    tokens = trimmed.encode("a  b c")  # a, Ġ, Ġb, Ġc
    assert [tokens.offsets[at] for at in range(4)] == [(0, 1), (2, 2), (3, 4), (5, 6)]
    assert marked_tokens(tokens, [(1, 4)]) == [0, 1, 1, 0]
    assert marked_tokens(tokens, [(0, 1), (2, 4)]) == [1, 0, 1, 0]


def test_a_range_that_ends_with_what_the_tokenizer_drops_has_nothing_after_it() -> None:
    words = Tokenizer(WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    words.pre_tokenizer = Whitespace()
    tokens = words.encode("a b\n c a")
    assert marked_tokens(tokens, [(1, 4)]) == [0, 1, 0, 0]
    assert marked_tokens(tokens, [(3, 4), (5, 6)]) == [0, 0, 1, 0]
