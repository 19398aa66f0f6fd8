"""Calls and answers in the chat templates of model families, as TRL ships them."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trl
from transformers import AutoTokenizer
from trl.chat_template_utils import get_training_chat_template, is_chat_template_prefix_preserving

from baton.tasks.core.job import StageError
from baton.tasks.environments.environments import ToolResult
from baton.tasks.posttrain.encode import RowEncoder
from baton.tasks.posttrain.tool_calls import ToolCalls, calls_of, tool_messages
from tests.posttrain.tiny import tiny_model

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
READ = ("qwen2_5", "qwen3", "qwen3_5_think", "llama3_1", "gptoss", "glm4moe", "lfm2_2_5", "gemma4", "nemotron_3_nano")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny", turns=True)


def tokenizer_of(model: Path, family: str) -> Any:
    """Make a tiny tokenizer with a family's template and the special tokens that the template writes."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = (TEMPLATES / f"{family}.jinja").read_text()
    special = {*re.findall(r"<\|\w+\|?>|<\w+\|>", tokenizer.chat_template)}
    tokenizer.add_special_tokens({"additional_special_tokens": sorted(special)})
    tokenizer.bos_token = tokenizer.eos_token  # some templates write it
    return tokenizer


@pytest.mark.parametrize("family", READ)
def test_a_call_that_the_template_renders_is_read_back(model: Path, family: str) -> None:
    """ToolCalls refuses a template for which this fails."""
    tokenizer = tokenizer_of(model, family)
    ToolCalls(tokenizer, RowEncoder(tokenizer), [])


@pytest.mark.parametrize("family", ["llama3", "phi3", "gemma3"])
def test_a_template_without_calls_is_refused(model: Path, family: str) -> None:
    tokenizer = tokenizer_of(model, family)
    with pytest.raises(StageError, match=r"tool calls in a form that is not read back|by no special token"):
        ToolCalls(tokenizer, RowEncoder(tokenizer), [])


@pytest.mark.long  # imports vLLM
@pytest.mark.parametrize("family", ["qwen3", "qwen2_5", "nemotron_3_nano"])
def test_answers_are_the_tokens_that_trl_appends(model: Path, family: str) -> None:
    tokenizer = tokenizer_of(model, family)
    tokenizer.eos_token = "<|im_end|>"
    answers = tool_messages([("look", {}), ("look", {})], [ToolResult("it is here"), ToolResult("it is gone")])
    trainer = SimpleNamespace(
        processing_class=tokenizer,
        _tokenizer=tokenizer,
        chat_template=None if is_chat_template_prefix_preserving(tokenizer) else get_training_chat_template(tokenizer),
        chat_template_kwargs={},
        _is_vlm=False,
    )

    ours = ToolCalls(tokenizer, RowEncoder(tokenizer), []).encoded(answers)
    theirs = trl.GRPOTrainer._get_tool_suffix_ids(trainer, answers)

    assert ours == theirs


def test_several_calls_of_a_turn_keep_their_order(model: Path) -> None:
    tokenizer = tokenizer_of(model, "qwen3")
    calls = ToolCalls(tokenizer, RowEncoder(tokenizer), [])
    written = ({"name": "a", "arguments": {}}, {"name": "b", "arguments": {"x": 1}})
    text = "".join(f"\n<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in written)

    message = calls.message([*tokenizer("First." + text)["input_ids"], calls.end], [])

    assert calls_of(message) == [("a", {}), ("b", {"x": 1})]
