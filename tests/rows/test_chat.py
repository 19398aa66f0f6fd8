"""Chat templates: what of a conversation the loss is on, what ends a turn, how many tokens a row has."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tasks.data.spec import SPECIAL_TOKENS
from tasks.data.tokenizer import CHAT_TEMPLATE, CONFIG, untrained
from tasks.rows.chat import (
    Loss,
    encode,
    end_of_turn,
    has_generation,
    problems,
    survey,
    training_template,
    trl_templates,
)

USER = {"role": "user", "content": "What is 2 + 2?"}
ASSISTANT = {"role": "assistant", "content": "It is 4."}
AGAIN = [{"role": "user", "content": "And 3 + 3?"}, {"role": "assistant", "content": "It is 6."}]
MARKED_CONTENT = "{% generation %}{{ message['content'] }}{% endgeneration %}"
CHATML_ON_ONE_LINE = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tokenizer(template: str | None = CHAT_TEMPLATE) -> Any:
    """Baton's own, trained on next to nothing."""
    bpe = untrained()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[*SPECIAL_TOKENS, "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(["What is 2 + 2? It is 4."], trainer)
    options = {name: value for name, value in CONFIG.items() if name != "tokenizer_class"}
    return PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=template, bos_token="<|endoftext|>", **options)


def lossy(known: Any, row: dict[str, Any], loss: Loss = "assistant") -> str:
    """The text that the loss is on."""
    tokens = encode(known, row, loss)
    return str(known.decode([token for token, counts in zip(tokens.ids, tokens.loss, strict=True) if counts]))


# Templates


def test_a_template_that_marks_what_the_assistant_says_is_known() -> None:
    assert has_generation("{%- generation -%}{{ message.content }}{% endgeneration %}")
    assert not has_generation(CHAT_TEMPLATE)


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, CHATML_ON_ONE_LINE], ids=["Baton's", "on one line"])
def test_chatml_gets_marks_and_says_the_same(template: str) -> None:
    known = tokenizer(template)
    marked = training_template(known)
    assert marked and has_generation(marked)
    chat = [{"role": "system", "content": "Be brief."}, USER, ASSISTANT, *AGAIN]
    assert known.apply_chat_template(chat, tokenize=False, chat_template=marked) == known.apply_chat_template(
        chat, tokenize=False
    )


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3", "gemma3", "phi3"])
def test_a_template_of_trl_s_gets_trl_s_marks(name: str) -> None:
    plain, marked = trl_templates()[name]
    assert not has_generation(plain)
    assert training_template(tokenizer(plain)) == marked


def test_trl_chooses_the_same() -> None:
    """The folder of templates is TRL's own, and private: this fails when it moves."""
    from trl.chat_template_utils import get_training_chat_template, is_chat_template_stop_token_trained

    for name in ("qwen3", "llama3"):
        known = tokenizer(trl_templates()[name][0])
        assert training_template(known) == get_training_chat_template(known)
    known = tokenizer()
    assert is_chat_template_stop_token_trained(known, training_template(known))


@pytest.mark.parametrize(
    ("row", "loss"),
    [
        ({"messages": [USER, ASSISTANT, *AGAIN]}, "assistant"),
        ({"messages": [USER, ASSISTANT, *AGAIN]}, "all"),
        ({"prompt": "2 + 2 =", "completion": " 4"}, "assistant"),
        ({"prompt": [USER], "completion": [ASSISTANT]}, "assistant"),
        ({"text": "It is 4.<|endoftext|>"}, "all"),
    ],
    ids=["assistant's turns", "all turns", "text", "completion", "text alone"],
)
def test_trl_s_trainer_makes_the_same_of_a_row(row: dict[str, Any], loss: Loss, tmp_path: Path) -> None:
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    marked = "messages" in row and loss == "assistant"
    known = tokenizer()
    known.chat_template = training_template(known)  # TRL refuses one without marks that it does not know
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    trainer = SFTTrainer(
        model=LlamaForCausalLM(LlamaConfig(vocab_size=len(known), **sizes)),
        args=SFTConfig(str(tmp_path), assistant_only_loss=marked, use_cpu=True, bf16=False, report_to="none"),
        train_dataset=Dataset.from_list([row]),
        processing_class=known,
    )
    made = trainer.train_dataset[0]
    tokens = encode(known, row, loss)
    assert made["input_ids"] == tokens.ids
    assert [label != -100 for label in made.get("labels", made["input_ids"])] == tokens.loss


def test_a_marked_template_is_left_alone_and_an_unknown_one_is_none() -> None:
    marked = trl_templates()["llama3"][1]
    assert training_template(tokenizer(marked)) == marked
    assert training_template(tokenizer("{% for message in messages %}{{ message.content }}{% endfor %}")) is None
    assert training_template(tokenizer(None)) is None


# What the loss is on


def test_the_loss_is_on_each_turn_of_the_assistant_and_its_end() -> None:
    chat = {"messages": [USER, ASSISTANT, *AGAIN]}
    assert lossy(tokenizer(), chat) == "It is 4.<|im_end|>It is 6.<|im_end|>"
    assert lossy(tokenizer(), chat, "all").startswith("<|im_start|>user\nWhat")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "2 + 2 =", "completion": " 4"}, " 4<|endoftext|>"),
        ({"prompt": [USER], "completion": [ASSISTANT]}, "It is 4.<|im_end|>\n"),
        ({"text": "It is 4."}, "It is 4.<|endoftext|>"),
    ],
    ids=["text", "messages", "text alone"],
)
def test_the_loss_is_on_the_completion_and_its_end(row: dict[str, Any], said: str) -> None:
    assert lossy(tokenizer(), row) == said


def test_a_conversation_with_tools_is_rendered_with_them() -> None:
    known = tokenizer(trl_templates()["qwen2_5"][0])
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
    turns = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "4"},
        ASSISTANT,
    ]
    row = {"messages": turns, "tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}]}
    assert '"name": "add", "parameters": {}' in known.decode(encode(known, row).ids)
    assert '<tool_call>\n{"name": "add"' in lossy(known, row)


@pytest.mark.parametrize(
    ("template", "ends"), [(CHAT_TEMPLATE, "<|im_end|>"), ("llama3", "<|eot_id|>"), ("qwen3", "<|im_end|>")]
)
def test_the_token_that_ends_a_turn_is_found(template: str, ends: str) -> None:
    known = tokenizer(trl_templates().get(template, (template,))[0])
    assert end_of_turn(known) == known.convert_tokens_to_ids(ends)


# Before anything is spent


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (None, "a tokenizer with a chat template"),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", "marks around what the assistant says"),
        (
            "{% for message in messages %}{% generation %}{{ message.content }}{% endgeneration %}{% endfor %}",
            "a template that ends a turn with a token of its own",
        ),
        (
            CHAT_TEMPLATE.replace("{{ message['content'] }}", MARKED_CONTENT),
            "the end of a turn, <|im_end|>, inside the marks",
        ),
    ],
    ids=["none", "no marks", "no end", "the end outside"],
)
def test_what_a_tokenizer_lacks_for_chat_is_told(template: str | None, wanted: str) -> None:
    (problem,) = problems(tokenizer(template))
    assert wanted in problem.allowed


def test_a_sound_tokenizer_lacks_nothing() -> None:
    assert problems(tokenizer()) == []


def test_rows_without_loss_and_rows_that_are_too_long_are_counted() -> None:
    never = "{% for message in messages %}{{ message.content }}{% if message.role == 'assistant' and loop.index > 2 %}{% generation %}!{% endgeneration %}{% endif %}{% endfor %}"  # noqa: E501
    rows = [{"messages": [USER, ASSISTANT]}, {"messages": [USER, ASSISTANT, *AGAIN]}]
    found = survey(tokenizer(never), rows, most=15)
    assert (found.rows, found.too_long, found.without_loss) == (2, 1, 1)
    assert found.loss_tokens == 1 and found.longest > 15
    loss, length = found.problems()
    assert "row 1" in loss.allowed and loss.value == "1 of 2 rows"
    assert "15 tokens" in length.allowed and length.value == "1 of 2 rows"


def test_tokens_of_every_kind_of_row_are_counted() -> None:
    kinds: list[dict[str, Any]] = [
        {"messages": [USER, ASSISTANT]},
        {"prompt": "a", "completion": "b"},
        {"prompt": "a", "chosen": "b", "rejected": "c c c c c c"},
        {"prompt": [USER], "chosen": [ASSISTANT], "rejected": [ASSISTANT]},
        {"prompt": [USER], "answer": 4},
        {"text": "a"},
    ]
    for row in kinds:
        found = survey(tokenizer(), [row], most=10_000)
        assert found.longest == found.tokens > 0 and found.problems() == []
