"""Tokenization of rows."""

from typing import Any

import pytest

from tasks.job import StageError
from tasks.posttrain.encode import IGNORED, Encoder, prompted

ASKED = [{"role": "user", "content": "2 + 2?"}]
SAID = [{"role": "assistant", "content": "4."}]


@pytest.fixture
def encoder(tokenizer: Any) -> Encoder:
    return Encoder(tokenizer)


def learned(encoder: Encoder, row: dict[str, Any], loss: Any) -> tuple[str, str]:
    """(the whole sequence, the tokens with a loss) as text."""
    ids, labels = encoder.learned(row, loss)
    assert all(label in (IGNORED, token) for token, label in zip(ids, labels, strict=True))
    text = encoder.tokenizer.decode
    return text(ids), text([label for label in labels if label != IGNORED])


def test_a_text_is_learned_whole_with_its_end(encoder: Encoder) -> None:
    assert learned(encoder, {"text": "a b"}, "all") == ("a b<|endoftext|>",) * 2
    assert learned(encoder, {"text": "a b<|endoftext|>"}, "all") == ("a b<|endoftext|>",) * 2
    assert encoder.chat is None


def test_of_a_prompt_and_its_completion_the_completion_and_its_end_are_learned(encoder: Encoder) -> None:
    row = {"prompt": "2 + 2 =", "completion": " 4"}

    assert learned(encoder, row, "completion") == ("2 + 2 = 4<|endoftext|>", " 4<|endoftext|>")
    assert learned(encoder, row | {"text": "of a column for rewards"}, "all")[0] == "2 + 2 = 4<|endoftext|>"
    assert learned(encoder, row, "all") == ("2 + 2 = 4<|endoftext|>",) * 2


def test_a_prompt_is_the_same_tokens_alone_and_before_its_completion(encoder: Encoder) -> None:
    """Together "re" and "turn" would be one token, which never occurs at inference."""
    tokenizer = encoder.tokenizer
    row = {"prompt": "re", "completion": "turn"}
    together = tokenizer("return")["input_ids"]
    assert together[: len(encoder.prompt(row))] != encoder.prompt(row)

    assert encoder.completion(row) == (tokenizer("re")["input_ids"], [*tokenizer("turn")["input_ids"], 0])


def test_of_messages_the_assistants_turns_and_their_ends_are_learned(encoder: Encoder) -> None:
    row = {"messages": [*ASKED, *SAID, {"role": "user", "content": "3 + 3?"}, {"role": "assistant", "content": "6."}]}

    whole, said = learned(encoder, row, "assistant")

    assert said == "4.<|endoftext|>6.<|endoftext|>"
    assert whole.startswith("<|im_start|>user\n2 + 2?") and learned(encoder, row, "all") == (whole, whole)
    assert encoder.chat and encoder.chat.given


def test_prompt_and_completion_may_be_messages_and_end_with_the_turn(encoder: Encoder) -> None:
    row = {"prompt": ASKED, "completion": SAID}

    prompt, completion = encoder.completion(row)

    assert prompt == encoder.prompt(row)
    assert encoder.tokenizer.decode(prompt).endswith("<|im_start|>assistant\n")
    assert encoder.tokenizer.decode(completion) == "4.<|endoftext|>"


def test_messages_ask_for_their_last_turn() -> None:
    row = {"messages": [*ASKED, *SAID], "topic": "sums"}

    assert prompted(row) == {"prompt": ASKED, "completion": SAID, "topic": "sums"}
    assert prompted({"prompt": "2 + 2 ="}) == {"prompt": "2 + 2 ="}


def test_chosen_and_rejected_are_completions_too(encoder: Encoder) -> None:
    row = {"prompt": "2 + 2 =", "chosen": " 4", "rejected": " 5"}

    assert encoder.tokenizer.decode(encoder.completion(row, "rejected")[1]) == " 5<|endoftext|>"


def test_tools_are_part_of_the_prompt(encoder: Encoder) -> None:
    row = {"prompt": ASKED, "tools": [{"type": "function", "function": {"name": "add_up"}}]}

    assert '"name": "add_up"' in encoder.tokenizer.decode(encoder.prompt(row))


def test_a_template_without_marks_is_named_before_anything_is_trained(encoder: Encoder) -> None:
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


def test_a_row_that_the_template_refuses_is_named(encoder: Encoder) -> None:
    encoder.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )

    assert encoder.prompt({"prompt": ASKED})
    with pytest.raises(StageError, match=r"rejects a row: no system role\. Change the row.*The row: {.*Be brief"):
        encoder.prompt({"prompt": [{"role": "system", "content": "Be brief."}, *ASKED]})


def test_an_empty_loss_mask_is_an_error_that_names_template_and_row(encoder: Encoder) -> None:
    encoder.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'bot' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )

    with pytest.raises(StageError) as error:
        encoder.learned({"messages": [*ASKED, *SAID]}, "assistant")
    said = str(error.value)
    assert said.startswith('a row has no token to learn with loss: assistant. The chat template "{% for m in mess')
    assert "marks no assistant turn in it" in said
    assert 'The row: {"messages": [{"role": "user", "content": "2 + 2?"}' in said
