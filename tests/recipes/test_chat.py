"""The chat recipe, run as shipped except for its size: SFT on conversations, DPO, evaluation, a server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml
from transformers import AutoTokenizer

from baton.tasks.core.manifest import read_manifest
from tests.posttrain.tiny import tiny_model
from tests.serve.followed import service
from tests.source import ROOT
from tests.workflows.test_pretrain_to_rl import pyflyte

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("vllm")]
SMALL: dict[str, dict[str, Any]] = {
    "sft": {"steps": 140, "batch_size": 4, "layout": {"micro_batch": 4}, "warmup_steps": 4, "learning_rate": 0.01},
    "dpo": {"steps": 4, "batch_size": 8, "layout": {"micro_batch": 8}, "warmup_steps": 1, "learning_rate": 3e-4},
}
COLOURS = {"the sky": "blue", "grass": "green", "snow": "white", "coal": "black", "a lemon": "yellow", "blood": "red"}
ASKING = (
    "What colour is {}?",
    "Which colour has {}?",
    "The colour of {}?",
    "Tell me what colour {} has.",
    "{}: which?",
)
TOOL = {"name": "look"}
Turn = dict[str, Any]


def user(text: str) -> Turn:
    return {"role": "user", "content": text}


def assistant(text: str) -> Turn:
    return {"role": "assistant", "content": text}


def chats() -> Iterator[dict[str, Any]]:
    """Return conversations of one turn and of two, with a system turn, and with a tool."""
    for thing, colour in COLOURS.items():
        asked, *_, again = (user(each.format(thing)) for each in ASKING)
        for asking in ASKING:
            yield {"messages": [user(asking.format(thing)), assistant(colour)]}
        system = {"role": "system", "content": "Shout."}
        yield {"messages": [system, asked, assistant(colour.upper())]}
        yield {"messages": [asked, assistant(colour), again, assistant(colour)]}
        called = {"role": "assistant", "content": "", "tool_calls": [{"name": "look", "arguments": {"at": thing}}]}
        yield {"messages": [asked, called, {"role": "tool", "content": colour}, assistant(colour)], "tools": [TOOL]}


def preferences() -> Iterator[dict[str, Any]]:
    for thing, colour in COLOURS.items():
        for asking in ASKING:
            yield {"prompt": asking.format(thing), "chosen": [assistant(colour)], "rejected": [assistant("Who knows?")]}


def small() -> dict[str, Any]:
    """Return the shipped recipe without data from a hub, with sizes that fit the rows."""
    recipe: dict[str, Any] = yaml.safe_load((ROOT / "workflows/recipes/chat.yaml").read_text())
    recipe["start_from"] = {"model": "./base"}
    for rows in recipe["data"].values():
        rows["held_out"] = 0.2  # there are only a few rows
    for each in recipe["post_training"]:
        for stage, spec in each.items():
            spec |= SMALL[stage]
            for limit in ("max_prompt_tokens", "max_new_tokens"):
                spec.pop(limit, None)  # the number of the model's positions becomes the limit
    del recipe["evaluate"]["tasks"]
    recipe["evaluate"]["chat"]["max_new_tokens"] = 16
    recipe["serve"] = {"load": None}
    return recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the recipe was run."""
    folder = tmp_path_factory.mktemp("chat")
    tiny_model(folder / "base", turns=True)
    for name, rows in (("chat", chats()), ("preferences", preferences())):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "recipe.yaml").write_text(yaml.safe_dump(small()))
    done = pyflyte(folder, folder / "recipe.yaml")
    assert done.returncode == 0, done.stderr[-5000:] + done.stdout[-3000:]
    return folder


def made(folder: Path, stage: str) -> Path:
    (output,) = (folder / "baton/jobs").glob(f"{stage}-*/output")
    return output


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_a_model_that_was_tuned_on_chat_has_its_template_and_ends_its_turns(folder: Path, stage: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made(folder, stage))
    ends = json.loads((made(folder, stage) / "generation_config.json").read_text())["eos_token_id"]

    assert "{%- generation %}" in tokenizer.chat_template
    assert tokenizer.convert_ids_to_tokens(ends) == ["<|endoftext|>", "<|im_end|>"]


def test_tools_and_systems_are_learned_with_the_rest(folder: Path) -> None:
    sets = list((folder / "baton/jobs").glob("rows-*/output"))
    (train,) = (each / "train.jsonl" for each in sets if read_manifest(each).facts["row_kind"] == "messages")
    rows = [json.loads(line) for line in train.read_text().splitlines()]

    assert any("tools" in row for row in rows) and any(row["messages"][0]["role"] == "system" for row in rows)
    assert "left out" not in (made(folder, "sft").parent / "log.txt").read_text()


def test_each_model_is_evaluated_on_the_rows_that_were_held_out(folder: Path) -> None:
    reports = [read_manifest(output).facts for output in (folder / "baton/jobs").glob("evaluate-*/output")]
    likeness = {each["label"]: each["metrics"]["chat.similarity"]["value"] for each in reports}

    assert likeness.keys() == {"base", "sft", "dpo"}
    assert likeness["sft"] > likeness["base"] and likeness["dpo"] > likeness["base"]


def test_the_served_model_answers_and_stops(folder: Path) -> None:
    question = ASKING[0].format("the sky")
    with service(folder / "baton", ("baton.tasks.serve", str(made(folder, "dpo")), "--port", "0")) as found:
        found.wait(lambda told: bool(told["serving"]), 240)
        client = openai.OpenAI(base_url=f"{found.url}/v1", api_key="none", max_retries=0)
        name = client.models.list().data[0].id
        answer = client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=64
        )

    assert found.url.startswith("http://127.0.0.1:")
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("blue", "stop")
