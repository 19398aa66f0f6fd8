"""Known templates: the tokens with a loss, and the end of a turn."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from baton.tasks.core.job import StageError
from baton.tasks.data.spec import SPECIAL_TOKENS
from baton.tasks.data.tokenizer import CHAT_TEMPLATE, CONFIG, untrained
from baton.tasks.posttrain.chat import chat_of, end_of_turn, has_generation, training_template
from baton.tasks.posttrain.encode import IGNORED, Loss, RowEncoder
from baton.tasks.posttrain.trl_hooks.templates import trl_templates

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
    """Baton's tokenizer, trained on very little text."""
    bpe = untrained("llama3")
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[*SPECIAL_TOKENS, "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(["What is 2 + 2? It is 4."], trainer)
    options = {name: value for name, value in CONFIG.items() if name != "tokenizer_class"}
    return PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=template, bos_token="<|endoftext|>", **options)


# Templates


def test_a_template_that_marks_what_the_assistant_says_is_known() -> None:
    assert has_generation("{%- generation -%}{{ message.content }}{% endgeneration %}")
    assert not has_generation(CHAT_TEMPLATE)


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, CHATML_ON_ONE_LINE], ids=["Baton's", "on one line"])
def test_chatml_gets_marks_and_says_the_same(template: str) -> None:
    known = tokenizer(template)
    marked = training_template(known, template)
    assert marked and has_generation(marked)
    chat = [{"role": "system", "content": "Be brief."}, USER, ASSISTANT, *AGAIN]
    assert known.apply_chat_template(chat, tokenize=False, chat_template=marked) == known.apply_chat_template(
        chat, tokenize=False
    )


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3", "gemma3", "phi3"])
def test_a_template_of_trl_s_gets_trl_s_marks(name: str) -> None:
    plain, marked = trl_templates()[name]
    assert not has_generation(plain)
    assert training_template(tokenizer(plain), plain) == marked


def test_trl_chooses_the_same() -> None:
    """The folder of templates is private to TRL; this test fails when it moves."""
    from trl.chat_template_utils import get_training_chat_template, is_chat_template_stop_token_trained

    for name in ("qwen3", "llama3"):
        known = tokenizer(trl_templates()[name][0])
        assert training_template(known, known.chat_template) == get_training_chat_template(known)
    known = tokenizer()
    assert is_chat_template_stop_token_trained(known, training_template(known, CHAT_TEMPLATE))


@pytest.mark.parametrize(
    ("row", "loss"),
    [
        ({"messages": [USER, ASSISTANT, *AGAIN]}, "assistant"),
        ({"messages": [USER, ASSISTANT, *AGAIN]}, "all"),
        ({"text": "It is 4.<|endoftext|>"}, "all"),
    ],
    ids=["assistant's turns", "all turns", "text"],
)
def test_trl_s_trainer_makes_the_same_of_a_row(row: dict[str, Any], loss: Loss, tmp_path: Path) -> None:
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    marked = "messages" in row and loss == "assistant"
    known = tokenizer()
    known.chat_template = training_template(known, CHAT_TEMPLATE)  # TRL refuses an unknown template without marks
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    trainer = SFTTrainer(
        model=LlamaForCausalLM(LlamaConfig(vocab_size=len(known), **sizes)),
        args=SFTConfig(str(tmp_path), assistant_only_loss=marked, use_cpu=True, bf16=False, report_to="none"),
        train_dataset=Dataset.from_list([row]),
        processing_class=known,
    )
    made = trainer.train_dataset[0]
    assert (made["input_ids"], made.get("labels", made["input_ids"])) == RowEncoder(known).learned(row, loss)


def test_a_marked_template_is_left_alone_and_an_unknown_one_is_none() -> None:
    marked, unknown = trl_templates()["llama3"][1], "{% for message in messages %}{{ message.content }}{% endfor %}"
    assert training_template(tokenizer(), marked) == marked
    assert training_template(tokenizer(), unknown) is None


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
    ids, labels = RowEncoder(known).learned(row, "assistant")
    assert '"name": "add", "parameters": {}' in known.decode(ids)
    assert '<tool_call>\n{"name": "add"' in known.decode([label for label in labels if label != IGNORED])


@pytest.mark.parametrize(
    ("template", "ends"), [(CHAT_TEMPLATE, "<|im_end|>"), ("llama3", "<|eot_id|>"), ("qwen3", "<|im_end|>")]
)
def test_the_token_that_ends_a_turn_is_found(template: str, ends: str) -> None:
    known = tokenizer(trl_templates().get(template, (template,))[0])
    assert end_of_turn(known, known.chat_template) == known.convert_tokens_to_ids(ends)


@pytest.mark.parametrize(
    ("last", "after"),
    [("", "<|im_end|>"), ("", "[END]"), ("{% if not loop.last %}<|im_end|>{% endif %}", "<|im_end|>")],
    ids=["the token", "text", "the token of the last turn"],
)
def test_marks_that_leave_out_the_end_of_a_turn_are_refused(last: str, after: str) -> None:
    marked = MARKED_CONTENT.replace("{% endgeneration %}", f"{last}{{% endgeneration %}}{after}")
    known = tokenizer(
        f"{{% for message in messages %}}{{% if message.role == 'assistant' %}}{marked}"
        "{% else %}{{ message.content }}{% endif %}{% endfor %}"
    )
    with pytest.raises(StageError, match=r"without their end token, .*: the model would not learn to stop"):
        RowEncoder(known).learned({"messages": [USER, ASSISTANT, *AGAIN]}, "assistant")


@pytest.mark.parametrize(
    "begin", ["", "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}"]
)
def test_marks_around_the_users_turns_are_refused(begin: str) -> None:
    known = tokenizer(f"{begin}{{% for message in messages %}}{MARKED_CONTENT}<|im_end|>{{% endfor %}}")
    row = {"messages": [{"role": "system", "content": "Be brief."}, USER, ASSISTANT]}
    with pytest.raises(StageError, match="marks the user's turns too, which would be learned"):
        RowEncoder(known).learned(row, "assistant")


def test_chatml_that_passes_tools_over_gets_them() -> None:
    """The new template is saved with the model."""
    known = tokenizer(CHATML_ON_ONE_LINE)
    chat = chat_of(known)
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    assert chat.given and '"add"' in known.apply_chat_template([USER], tools=tools, tokenize=False)


def test_chatml_with_tools_of_its_own_is_left_alone() -> None:
    known = tokenizer(CHATML_ON_ONE_LINE + "{% if tools %}TOOLS{% endif %}")
    assert training_template(known, known.chat_template) is None
