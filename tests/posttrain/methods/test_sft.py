"""The SFT engine as a separate process with a tiny model."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton.tasks.core.job import StageError, json_lines, open_job
from baton.tasks.core.manifest import read_manifest, verify
from baton.tasks.posttrain.methods.sft import train
from tests.forked import Forked
from tests.posttrain.tiny import (
    chat,
    complete_checkpoints,
    metrics,
    repeated_words,
    start,
    tiny_model,
    tiny_rows,
    wait_for_step,
    without_times,
    write_job,
)

SPEC = {
    "data": "twice",
    "steps": 12,
    "batch_size": 8,
    "layout": {"micro_batch": 4},
    "warmup_steps": 2,
    "learning_rate": 0.01,
    "checkpoint_every": 3,
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    rows = tiny_rows(root / "rows", repeated_words(), "prompt_completion")
    return {"model": tiny_model(root / "model"), "rows": rows}


@pytest.fixture(scope="module")
def tuned(inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job directory of a complete run."""
    job = write_job(tmp_path_factory.mktemp("sft") / "job", "sft", SPEC, **inputs)
    assert start("baton.tasks.posttrain.engine", job).wait() == 0, (job / "log.txt").read_text()
    return job


def test_the_output_is_a_complete_model_in_the_inputs_number_format(tuned: Path, inputs: dict[str, Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(tuned / "output", dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(tuned / "output")

    facts = verify(tuned / "output").facts
    assert facts == read_manifest(inputs["model"]).facts | {"label": "sft"}
    assert str(model.dtype) == "torch.bfloat16"
    assert tokenizer.decode(tokenizer("return x").input_ids) == "return x"
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert (tuned / "output" / name).read_bytes() == (inputs["model"] / name).read_bytes()


def test_the_loss_falls_and_is_recorded_at_every_step(tuned: Path) -> None:
    losses = [line["loss"] for line in metrics(tuned)[1:]]

    assert [line["step"] for line in metrics(tuned)] == list(range(13))
    assert losses[-1] < losses[0] - 0.5


def test_killed_while_it_saves_it_continues_from_the_checkpoint_before(
    tuned: Path, inputs: dict[str, Path], tmp_path: Path
) -> None:
    job = write_job(tmp_path / "job", "sft", SPEC | {"checkpoint_every": 1}, **inputs)
    engine = start("baton.tasks.posttrain.engine", job)
    wait_for_step(job, engine, 2)
    _stop(engine)  # pauses the engine, so that its state does not change before the kill
    while not (saving := _incomplete(job)):
        engine.send_signal(signal.SIGCONT)
        time.sleep(0.002)
        _stop(engine)
        assert engine.poll() is None, (job / "log.txt").read_text()
    engine.kill()
    engine.wait()
    before = complete_checkpoints(job)[-1]

    assert start("baton.tasks.posttrain.engine", job).wait() == 0, (job / "log.txt").read_text()

    assert step_of(saving[0]) == step_of(before) + 1
    assert f"continuing from {before}" in (job / "log.txt").read_text()
    assert digest(job) == digest(tuned)
    assert without_times(job) == without_times(tuned)


def _stop(engine: Forked) -> None:
    engine.send_signal(signal.SIGSTOP)
    time.sleep(0.005)


def _incomplete(job: Path) -> list[Path]:
    found = (job / "work" / "checkpoints").glob("checkpoint-*")
    return [path for path in found if path not in complete_checkpoints(job)]


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


@pytest.mark.long
def test_where_every_checkpoint_is_damaged_the_run_ends_with_a_named_error(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    job = write_job(tmp_path / "job", "sft", SPEC | {"steps": 400}, **inputs)
    engine = start("baton.tasks.posttrain.engine", job)
    wait_for_step(job, engine, 7)
    engine.kill()
    engine.wait()
    for checkpoint in complete_checkpoints(job):
        (checkpoint / "__0_0.distcp").write_bytes(b"")

    assert start("baton.tasks.posttrain.engine", job).wait() == 1

    error = json.loads((job / "result.json").read_text())
    assert error["kind"] == "ArtifactError" and "every checkpoint is damaged" in error["error"]
    assert "traceback" not in error


@pytest.mark.long
@pytest.mark.parametrize(
    "size",
    [pytest.param("400k", marks=pytest.mark.long), "1500k"],
    ids=["while the weights are written", "while AdamW's state is"],
)
def test_a_disk_that_is_full_ends_the_run_with_a_word(inputs: dict[str, Path], tmp_path: Path, size: str) -> None:
    job = write_job(tmp_path / "job", "sft", SPEC, **inputs)
    (job / "work").mkdir()
    engine = f"{sys.executable} -m baton.tasks.posttrain.engine {job}"
    on_a_small_disk = f"mount -t tmpfs -o size={size} tmpfs {job / 'work'} && exec {engine}"
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", on_a_small_disk]

    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)

    assert ended.returncode == 1, ended.stderr
    error = json.loads((job / "result.json").read_text())
    assert error["kind"] == "StageError", ended.stderr
    assert f"{job / 'work' / 'checkpoints'} could not be written" in error["error"]
    assert "Make room there and start again" in error["error"]


def test_sigterm_leaves_a_checkpoint_of_the_step_under_way(inputs: dict[str, Path], tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", "sft", SPEC | {"steps": 400, "checkpoint_every": 1000}, **inputs)
    engine = start("baton.tasks.posttrain.engine", job)
    wait_for_step(job, engine, 3)

    engine.send_signal(signal.SIGTERM)

    assert engine.wait(timeout=60) == 143
    assert complete_checkpoints(job)[-1].name == f"checkpoint-{metrics(job)[-1]['step']:.0f}"
    assert not (job / "result.json").exists()


def test_rows_that_are_all_too_long_are_an_error_that_says_what_is_needed(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    job = write_job(tmp_path / "job", "sft", SPEC | {"max_prompt_tokens": 8, "max_new_tokens": 4}, **inputs)

    with pytest.raises(StageError) as error:
        train(open_job(job))
    assert str(error.value) == (
        "none of the 400 training rows is within max_prompt_tokens 8 and max_new_tokens 4; raise these, or use "
        "shorter rows"
    )


def test_more_positions_than_the_model_has_are_refused(inputs: dict[str, Path], tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", "sft", SPEC | {"max_prompt_tokens": 300}, **inputs)

    with pytest.raises(StageError) as error:
        train(open_job(job))
    assert str(error.value) == (
        "max_prompt_tokens 300 and 256 tokens in all: the model has 256 positions for both together; lower one of them"
    )


def test_a_model_without_a_template_is_tuned_on_chat_answers_and_stops(tmp_path: Path) -> None:
    said = [chat(row | {"completion": "yes"}) for row in repeated_words()]
    rows = tiny_rows(tmp_path / "rows", said, "messages")
    spec = SPEC | {
        "label": "talker",
        "steps": 25,
        "batch_size": 16,
        "layout": {"micro_batch": 16},
        "checkpoint_every": 25,
    }
    job = write_job(tmp_path / "job", "sft", spec, model=tiny_model(tmp_path / "model", turns=True), rows=rows)

    assert start("baton.tasks.posttrain.engine", job).wait() == 0, (job / "log.txt").read_text()

    assert verify(job / "output").facts["label"] == "talker"
    tokenizer = AutoTokenizer.from_pretrained(job / "output")
    model = AutoModelForCausalLM.from_pretrained(job / "output", dtype="auto")
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "7: sun sea ->"}], add_generation_prompt=True, return_tensors="pt"
    )
    answer = model.generate(**asked, do_sample=False, max_new_tokens=40)[0, asked["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "yes<|im_end|>"
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id, answer[-1]]


def test_packed_rows_have_the_loss_of_rows_by_themselves(inputs: dict[str, Path], tmp_path: Path) -> None:
    rows = tiny_rows(tmp_path / "rows", repeated_words(8), "prompt_completion")
    spec = SPEC | {"steps": 2, "warmup_steps": 0, "layout": {"micro_batch": 8}, "seed": 3}
    losses = []
    for packing in (True, False):
        job = write_job(tmp_path / f"{packing}", "sft", spec | {"packing": packing}, model=inputs["model"], rows=rows)
        train(open_job(job))
        losses.append(metrics(job)[1]["loss"])

    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_the_epochs_of_packed_rows_are_those_of_their_sequences(inputs: dict[str, Path], tmp_path: Path) -> None:
    rows = tiny_rows(tmp_path / "rows", repeated_words(8), "prompt_completion")
    spec = SPEC | {"steps": 2, "warmup_steps": 0, "layout": {"micro_batch": 8}, "packing": True}
    job = write_job(tmp_path / "job", "sft", spec, model=inputs["model"], rows=rows)
    train(open_job(job))

    first, second = (line["tokens"] for line in metrics(job)[1:])
    assert second == 2 * first  # each step uses the entire set
    (text,) = [line["text"] for line in json_lines(open_job(job).notices) if "epochs" in line["text"]]
    assert text.startswith("2.0 epochs over 8 rows: the set has no more; an epoch's last step has 1 instead of")


def test_a_loss_that_the_rows_do_not_allow_is_refused(inputs: dict[str, Path], tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", "sft", SPEC | {"loss": "assistant"}, **inputs)

    with pytest.raises(StageError, match="loss: assistant: rows of kind prompt_completion allow completion or all"):
        train(open_job(job))


def digest(job: Path) -> Any:
    return json.loads((job / "result.json").read_text())["digest"]
