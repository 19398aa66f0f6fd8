"""The service with vLLM's server behind it; `make test-serve` takes three to six minutes on two cores."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton.tasks.core.manifest import read_manifest, write_manifest
from baton.tasks.models.adapter_base import ADAPTER, open_model
from baton.tasks.publish.champion import promote, roll_back
from baton.tasks.publish.copy import copy_model
from baton.tasks.serve.explained import NO_CHAT
from tests.posttrain.tiny import tiny_model as talker
from tests.processes import commands
from tests.publish.test_card import tuned_adapter
from tests.serve.followed import (
    NAME,
    REAL,
    awaited,
    digest_of,
    publish,
    service,
    small_model,
    under_load,
)
from tests.serve.tiny import tiny_model
from tests.source import ROOT
from tests.tokenizer_folders import CHATML
from tests.tracking.conftest import Server, empty_store, home, server, sleeping_server  # noqa: F401 - fixtures

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("vllm")]
PROMPT = "def read"
START_S = 240  # one vLLM server beside another, on a busy machine


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("first", "second", "not-a-number", "torn")):
        tiny_model(root / name, seed=seed)
    spoil_numbers(root / "not-a-number")
    weights = root / "torn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    seal_again(root / "torn")
    return {path.name: path for path in root.iterdir()}


def spoil_numbers(model: Path) -> None:
    """Change a model so that it loads and is healthy, but computes NaNs."""
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"].fill_(float("nan"))
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    seal_again(model)


def seal_again(model: Path) -> None:
    write_manifest(model, "hf_model", read_manifest(model).facts)


def test_a_champion_moves_under_sixteen_clients_and_no_request_fails(home: Path, models: dict[str, Path]) -> None:  # noqa: F811
    versions = {name: publish(model) for name, model in models.items()}
    promote(NAME, versions["first"], None)
    with service(home, REAL) as followed:
        followed.serves(versions["first"], START_S)

        def steps() -> None:
            promote(NAME, versions["second"], versions["first"])
            followed.serves(versions["second"], START_S)
            for name in ("not-a-number", "torn"):
                promote(NAME, versions[name], versions["second"])
                status = followed.wait(lambda status: bool(status["refused"]), START_S)
                assert (status["refused"]["version"], status["serving"]["version"]) == (
                    versions[name],
                    versions["second"],
                )
                roll_back(NAME)
                followed.wait(lambda status: status["refused"] is None, START_S)
            promote(NAME, versions["first"], versions["second"])
            followed.serves(versions["first"], START_S)

        # the new engine must load on the two cores that the old one uses to answer
        answers = under_load(followed.url, steps, pause_s=0.1)
    print(f"{len(answers)} answers, {sum(bool(answer.failure) for answer in answers)} failures")
    assert [answer.failure for answer in answers if answer.failure] == []
    assert {answer.header_digest for answer in answers} == {digest_of(models[name]) for name in ("first", "second")}
    assert all(answer.header_digest == answer.body_digest for answer in answers)
    assert len(answers) > 1000


@pytest.fixture
def one(home: Path, models: dict[str, Path]) -> Iterator[openai.OpenAI]:  # noqa: F811
    with service(home, ("baton.tasks.serve", str(models["first"]), "--port", "0")) as found:
        found.wait(lambda status: bool(status["serving"]), START_S)
        yield openai.OpenAI(base_url=f"{found.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def tuned(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tuned_adapter(models["first"], tmp_path_factory.mktemp("adapter"))


@pytest.fixture(scope="module")
def answer(tuned: Path, models: dict[str, Path]) -> str:
    """Return the answer of Transformers and PEFT to the prompt, which differs from the base's."""
    base = AutoModelForCausalLM.from_pretrained(models["first"])
    tokenizer = AutoTokenizer.from_pretrained(models["first"])
    prompt = tokenizer(PROMPT, return_tensors="pt")

    def generate(model: Any) -> str:
        ids = model.generate(**prompt, max_new_tokens=8, do_sample=False)
        return str(tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))

    by_base = generate(base)
    by_adapter = generate(PeftModel.from_pretrained(base, tuned / ADAPTER))
    assert by_base != by_adapter
    return by_adapter


@pytest.fixture(scope="module")
def adapter(tuned: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with service(tmp_path_factory.mktemp("home"), ("baton.tasks.serve", str(tuned), "--port", "0")) as found:
        found.wait(lambda status: bool(status["serving"]), START_S)
        yield openai.OpenAI(base_url=f"{found.url}/v1", api_key="none", max_retries=0)


def test_one_model_chats_completes_and_says_who_it_is(one: openai.OpenAI, models: dict[str, Path]) -> None:
    digest = digest_of(models["first"])
    assert {each.id for each in one.models.list()} == {digest, "tiny"}
    chat = one.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=4)
    completion = one.completions.create(model=digest, prompt="def", max_tokens=4)
    assert chat.model == completion.model == digest


@pytest.mark.parametrize("name", [None, "", "sft", "digest"])
def test_an_adapter_answers_by_whatever_name_it_is_asked(adapter: openai.OpenAI, name: str | None, answer: str) -> None:
    """vLLM's own server uses the base for a request without a model name."""
    digest = adapter.models.list().data[0].id
    asked = {"model": digest if name == "digest" else name, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    answered = adapter.post("/completions", body=asked, cast_to=openai.types.Completion)
    assert (answered.model, answered.choices[0].text) == (digest, answer)


def test_an_adapter_gives_log_probabilities_of_several_prompts(adapter: openai.OpenAI) -> None:
    prompts = [f"{PROMPT} {'and more ' * number}" for number in range(8)]
    asked: dict[str, Any] = {"model": "sft", "max_tokens": 1, "echo": True, "logprobs": 1}

    def logprobs(prompt: str | list[str]) -> list[list[float | None]]:
        answer = adapter.completions.create(prompt=prompt, **asked)
        return [choice.logprobs.token_logprobs[1:-1] for choice in answer.choices if choice.logprobs]

    together = logprobs(prompts)
    assert together == [pytest.approx(logprobs(prompt)[0], abs=0.05) for prompt in prompts]


def test_two_models_are_chatted_with_side_by_side(home: Path, models: dict[str, Path], tmp_path: Path) -> None:  # noqa: F811
    """The second one has no chat template."""
    plain = tmp_path / "plain"
    shutil.copytree(models["second"], plain)
    (plain / "chat_template.jinja").unlink()
    seal_again(plain)
    words = ("baton.tasks.serve", str(models["first"]), "--beside", str(plain), "--port", "0")
    with service(home, words) as found:
        awaited(lambda: httpx.get(f"{found.url}/healthz").is_success, 2 * START_S, found.log)
        sampling = ["--beside", f"{found.url}/beside/v1", "--max-tokens", "8", "--temperature", "0"]
        chat = [sys.executable, "-m", "baton", "chat", found.url, *sampling]
        said = subprocess.run(chat, input="Hello", capture_output=True, text=True, cwd=ROOT, check=False)
        assert f"== tiny · model {digest_of(models['first'])}\n" in said.stdout
        assert NO_CHAT in said.stderr
        done = subprocess.run(
            [*chat, "--completion"], input="def", capture_output=True, text=True, cwd=ROOT, check=True
        )
        assert f"== tiny · model {digest_of(plain)}\n" in done.stdout
        for prefix, digest in (("", digest_of(models["first"])), ("/beside", digest_of(plain))):
            asked = {"model": "another", "prompt": "def"}
            error = httpx.post(f"{found.url}{prefix}/v1/completions", json=asked).json()["error"]
            assert error["message"].endswith(f"`another` does not exist. This server has `{digest}` and `tiny`")


def test_a_chat_starts_vllm_for_a_model_of_this_machine_and_ends_it(home: Path, models: dict[str, Path]) -> None:  # noqa: F811
    chat = [sys.executable, "-m", "baton", "chat", str(models["first"]), "--max-tokens", "4"]
    environment = os.environ | {"BATON_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    said = subprocess.run(
        chat, input="Hello", capture_output=True, text=True, cwd=ROOT, env=environment, check=True, timeout=START_S
    )
    assert said.stdout.strip() and "starting its server" in said.stderr
    assert not [words for words in commands(psutil.process_iter()).values() if str(models["first"]) in words]


def test_an_adapter_s_base_is_not_served(adapter: openai.OpenAI, tuned: Path) -> None:
    assert {each.id for each in adapter.models.list()} == {digest_of(tuned), "sft"}
    with pytest.raises(openai.NotFoundError):
        adapter.completions.create(model=f"base-of-{digest_of(tuned)}", prompt=PROMPT)


def test_a_champion_that_is_an_adapter_stops_at_the_end_of_its_turn(home: Path, tmp_path: Path) -> None:  # noqa: F811
    base = talker(tmp_path / "base", turns=True)
    tuned = tuned_adapter(base, tmp_path / "job")
    (tuned / "chat_template.jinja").write_text(CHATML)
    (tuned / "generation_config.json").write_text('{"eos_token_id": [0, 3]}')
    write_manifest(tuned, "hf_model", read_manifest(tuned).facts)
    published = tmp_path / "published"
    copy_model(open_model(tuned), published)
    write_manifest(published, "published_model", {"label": "sft", "registry_name": NAME})
    promote(NAME, version := publish(published), None)
    with service(home, REAL) as followed:
        followed.serves(version, START_S)
        client = openai.OpenAI(base_url=f"{followed.url}/v1", api_key="none", max_retries=0)
        messages: Any = [{"role": "user", "content": "Hello"}]
        answer = client.chat.completions.create(
            model=NAME, messages=messages, max_tokens=6, logit_bias={"3": 100}, temperature=0
        )
    assert (answer.choices[0].finish_reason, answer.usage and answer.usage.completion_tokens) == ("stop", 1)


def test_a_killed_service_leaves_no_process_of_vllm(home: Path, models: dict[str, Path]) -> None:  # noqa: F811
    with service(home, ("baton.tasks.serve", str(models["first"]), "--port", "0")) as found:
        awaited(lambda: "EngineCore" in str(commands(found.family()).values()), START_S, found.log)
        family = found.family()
        found.process.send_signal(signal.SIGKILL)
        assert psutil.wait_procs(family, timeout=20)[1] == []


def test_a_registry_that_is_away_costs_nothing(home: Path, server: Server, tmp_path: Path) -> None:  # noqa: F811
    """The files of the versions come from the registry, which is then killed, and restarted with another champion."""
    models = [small_model(tmp_path / name) for name in ("first", "second")]
    versions = [publish(model) for model in models]
    promote(NAME, versions[0], None)
    for model in models:
        shutil.rmtree(model)
    with service(home) as followed:
        followed.serves(versions[0], 60)

        def steps() -> None:
            server.kill()
            awaited(lambda: "the registry is unreachable" in followed.log.read_text(), 60, followed.log)
            server.start()
            promote(NAME, versions[1], versions[0])
            followed.serves(versions[1], 60)

        answers = under_load(followed.url, steps)
    assert [answer.failure for answer in answers if answer.failure] == []
    assert len({answer.header_digest for answer in answers}) == 2
