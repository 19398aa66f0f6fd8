"""A prompt has the same tokens everywhere: in training, preference pairs, rollouts, evaluation, lm-eval and serving."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from baton.infra.storage.durable import remove
from baton.tasks.core.manifest import write_manifest
from baton.tasks.evaluate import questions
from baton.tasks.evaluate.model_info import read_model_info
from baton.tasks.evaluate.spec import EvaluatorSpec
from baton.tasks.models.tokenizers import load
from baton.tasks.posttrain.encode import RowEncoder
from tests import forked
from tests.posttrain.tiny import tiny_model
from tests.tokenizer_folders import CHATML

forked.load("vllm")

END = "<|endoftext|>"
TEXTS = [
    "day 7:", " day", "day ", "  two  spaces  ", "\n\n    indented\n", "\ttab", "Grüße, 漢字, 🙂", "e\u0301", "a\r\nb",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", f"before {END} after", f"{END}{END}", "<|pad|>x",
    "<|im_start|>", "<|im_end", "[INST] x [/INST]", "</s>", "<think>\n\n</think>", '{"a": [1, 2.50]}', "don't",
    "x" * 200, "١٢٣", "\u00a0\u200b", "0", "def f(x):\n    return x",
]  # fmt: skip
HI, ANSWER = {"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "It is 4."}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {
    "type": "object", "properties": {"at": {"type": "string"}}}}}  # fmt: skip
CALLED = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}]}  # fmt: skip
CHATS: list[dict[str, Any]] = [
    *({"prompt": [{"role": "user", "content": text}]} for text in TEXTS[:16]),
    {"prompt": [HI, ANSWER, HI]},
    {"prompt": [{"role": "system", "content": " Be brief. "}, HI]},
    {"prompt": [{"role": "system", "content": "Be brief."}, HI, ANSWER, HI, ANSWER, HI]},
    {"prompt": [HI], "tools": [TOOL]},
    {"prompt": [HI, CALLED, {"role": "tool", "name": "look", "content": "there"}], "tools": [TOOL]},
    {"prompt": [HI, ANSWER, HI], "tools": [TOOL, TOOL]},
    {"prompt": [HI], "chat_template_kwargs": {"enable_thinking": False}},
    {"prompt": [HI, ANSWER, HI], "chat_template_kwargs": {"enable_thinking": True}},
    {"prompt": [HI, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n4"}, HI]},
]
ROWS = [{"prompt": text} for text in TEXTS] + CHATS  # 50 rows
THINKING = (
    "{% set start = '<|im_start|>assistant\n' + ('<think>\n\n</think>\n\n' if enable_thinking is false else '') %}"
    "{% for m in messages %}{{ start if loop.last and m.role == 'assistant' else '<|im_start|>' + m.role + '\n' }}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}{{ start }}{% endif %}"
)
WITH_TOOLS = "{{ bos_token }}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}" + CHATML.replace(
    "message['content'] }}", "message['content'] }}{{ message.tool_calls | tojson if message.tool_calls }}"
)


@pytest.fixture(scope="module", params=["no template", "several templates and BOS"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_model(tmp_path_factory.mktemp("model") / "model", turns=True, positions=512)
    if request.param == "several templates and BOS":
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.post_processor = processors.TemplateProcessing(single="<|pad|> $A", special_tokens=[("<|pad|>", 1)])
        tokenizer.save(str(folder / "tokenizer.json"))
        templates = {"default": "{{ bos_token }}" + THINKING, "tool_use": WITH_TOOLS}
        config = json.loads((folder / "tokenizer_config.json").read_text()) | {
            "bos_token": "<|pad|>",
            "chat_template": [{"name": name, "template": text} for name, text in templates.items()],
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        remove(folder / "manifest.json")
        write_manifest(folder, "hf_model", {"label": "base", "max_positions": 512})
    return folder


def of_training(model: Path) -> list[list[int]]:
    """Tokenize the prompts like SFT, DPO and GRPO."""
    encoder = RowEncoder(load(model))
    ids = [encoder.prompt(row) for row in ROWS]
    assert ids == [encoder.completion(row | {"completion": " yes"})[0] for row in ROWS]
    texts = [encoder.learned({"text": text}, "all")[0] for text in TEXTS]
    assert [text if text[-1] == 0 else [*text, 0] for text in ids[: len(TEXTS)]] == texts
    return ids


def of_evaluation(model: Path, folder: Path) -> list[list[int]]:
    folder.mkdir()
    (folder / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    spec = EvaluatorSpec.model_validate({"data": "x", "rewards": ["match"], "max_new_tokens": 8})
    asked = questions.choose("x", folder, spec, read_model_info(model), seed=0).questions
    known = {json.dumps(question.row): question.tokens for question in asked}
    return [known[json.dumps(row)] for row in ROWS]


def test_training_and_evaluation_have_the_same_tokens(model: Path, tmp_path: Path) -> None:
    assert of_evaluation(model, tmp_path / "rows") == of_training(model)


def test_they_are_the_same_after_tuning(model: Path, tmp_path: Path) -> None:
    tuned = tmp_path / "tuned"
    shutil.copytree(model, tuned)
    encoder = RowEncoder(load(model))
    before = [encoder.prompt(row) for row in ROWS]
    encoder.write(tuned)
    assert of_training(tuned) == before


def serve(model: Path, answer: Path) -> None:
    """Write the tokens that vLLM and lm-eval's model produce for the rows."""
    from baton.tasks.evaluate.language_model import VLLMModel
    from baton.tasks.vllm.engine import open_engine

    llm = open_engine(model, max_model_len=512, seed=0, max_num_seqs=16)
    params = llm.get_default_sampling_params()
    params.max_tokens = 1
    served = []
    for row in ROWS:
        if isinstance(row["prompt"], str):
            (output,) = llm.generate(row["prompt"], params, use_tqdm=False)
        else:
            options = {"tools": row.get("tools"), "chat_template_kwargs": row.get("chat_template_kwargs")}
            (output,) = llm.chat(row["prompt"], params, use_tqdm=False, **options)
        served.append(list(output.prompt_token_ids))
    info = read_model_info(model)
    texts, chats = VLLMModel(lambda: llm, info), VLLMModel(lambda: llm, info, chats=True)
    asked = [
        texts.tok_encode(row["prompt"])
        if isinstance(row["prompt"], str)
        else None
        if row.keys() - {"prompt"}
        else chats.tok_encode(chats.apply_chat_template(row["prompt"]))
        for row in ROWS
    ]
    answer.write_text(json.dumps({"served": served, "lm-eval": asked}))


@pytest.mark.long  # starts vLLM
def test_serving_and_lm_eval_have_them_too(vllm: None, model: Path, tmp_path: Path) -> None:
    """The model is tuned, and has a chat template."""
    tuned, answer = tmp_path / "tuned", tmp_path / "answer.json"
    shutil.copytree(model, tuned)
    encoder = RowEncoder(load(model))
    expected = [encoder.prompt(row) for row in ROWS]
    encoder.write(tuned)
    engine = forked.Forked(tmp_path / "log.txt", serve, tuned, answer)
    assert engine.wait() == 0, (tmp_path / "log.txt").read_text()[-2000:]
    found = json.loads(answer.read_text())
    (doubled,) = [number for number, row in enumerate(ROWS) if row["prompt"] == "<|pad|>x"]
    if expected[0][0] == 1:  # like Transformers, vLLM adds a BOS even to a text that has one
        assert found["served"][doubled] == [1, *expected[doubled]]
        found["served"][doubled] = expected[doubled]
    assert found["served"] == expected
    assert [ids or each for ids, each in zip(found["lm-eval"], expected, strict=True)] == expected
