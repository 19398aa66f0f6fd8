"""The real engine with a tiny model: its measurements, output files and errors."""

import bisect
import inspect
import json
import math
import queue
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton.infra.process.launch import Engine, EngineFailed, run_engine
from baton.infra.text import size
from baton.tasks.core.checkpoints import CheckpointFolder
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import Manifest, read_manifest, verify, write_manifest
from baton.tasks.data.documents import Document, SplitWriter, document, read_documents
from baton.tasks.evaluate.results import read_results
from baton.tasks.evaluate.spec import EvaluateSpec
from tests.promote.made import decided, read
from tests.serve.tiny import POSITIONS, tiny_corpus, tiny_model

ENGINE = Engine("evaluate", "baton.tasks.evaluate.evaluate", "test")
REWARDS = """
def length(completion_ids, **kwargs):
    return [float(len(set(each))) for each in completion_ids]


def lucky(prompts, completions, answer, **kwargs):
    return [None if right is None else float(each[:1] == right[:1]) for each, right in zip(completions, answer)]
"""
TASK = """
task: mine
dataset_path: json
dataset_kwargs: {data_files: {test: test.jsonl}}
test_split: test
fewshot_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: ["yes", "no"]
doc_to_target: answer
metric_list: [{metric: acc, higher_is_better: true}]
"""
SPEC: dict[str, Any] = {
    "bits_per_byte": {"held_out_bytes": 12_345},
    "seed": 7,
    "words": {
        "data": "words",
        "rewards": ["rewards.py:lucky", "rewards.py:length"],
        "samples": 3,
        "pass_at": [1, 2],
        "max_new_tokens": 8,
    },
    "tasks": {"lm_eval": ["tasks/mine.yaml"], "few_shot": 1},
    "chat": {"data": "chat", "rewards": [{"match": {}}], "prompts": 4, "max_new_tokens": 8, "temperature": 0.0},
}
MORE = ("small", "prose", "empty")  # corpora besides the first


@dataclass(frozen=True)
class World:
    """A model, a corpus, two sets of rows, and the evaluation of the model on them."""

    root: Path
    model: Manifest
    output: Path

    def request(self, spec: Mapping[str, Any], corpora: Sequence[str] = (), model: str = "model") -> dict[str, Any]:
        checked = EvaluateSpec.model_validate(spec)
        with chdir(self.root):
            found = checked.pinned()
        inputs = {"model": self.root / model}
        inputs |= {f"corpora.{number}": self.root / name for number, name in enumerate(["corpus", *corpora])}
        inputs |= {f"rows.{number}": self.root / name for number, name in enumerate(checked.sets())}
        return {
            "stage": "evaluate",
            "kind": "eval_report",
            "spec": found.model_dump(mode="json"),
            "inputs": {name: {"path": str(path), "digest": self.digest(path)} for name, path in inputs.items()},
        }

    def evaluate(self, name: str, spec: Mapping[str, Any], corpora: Sequence[str] = (), model: str = "model") -> Path:
        request = self.request(spec, corpora, model)
        return run_engine(ENGINE, self.root / name, request, title="evaluate-tiny")

    def digest(self, path: Path) -> str:
        return self.model.digest if path.name == "damaged" else read_manifest(path).digest

    @property
    def report(self) -> dict[str, Any]:
        return report(self.output)

    def value(self, name: str) -> float:
        return float(self.report["metrics"][name]["value"])


def report(output: Path) -> dict[str, Any]:
    return dict(json.loads((output / "report.json").read_text()))


def lines(output: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / f"{name}.jsonl").read_text().splitlines()]


def rows(folder: Path, *made: dict[str, Any]) -> Path:
    """Write a set with these held-out rows."""
    folder.mkdir()
    (folder / "train.jsonl").write_text("")
    (folder / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    (folder / "rows.json").write_text("{}")
    write_manifest(folder, "rows", {})
    return folder


@pytest.fixture(scope="module")
def world(vllm: None, tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("world")
    model = tiny_model(root / "model")
    tiny_corpus(root / "corpus")
    rows(
        root / "words",
        *[{"prompt": f"def area_{at}(", "answer": "self" if at % 2 else None} for at in range(40)],
        {"prompt": "x" * 4000, "answer": "too long"},
    )
    turns = [("user", "Hello?"), ("assistant", "Hello."), ("user", "And you?"), ("assistant", "Well.")]
    chat = [{"messages": [{"role": role, "content": f"{text}{at}"} for role, text in turns]} for at in range(6)]
    rows(root / "chat", *chat)
    (root / "rewards.py").write_text(REWARDS)
    (root / "tasks").mkdir()
    (root / "tasks/mine.yaml").write_text(TASK)
    asked = [{"question": f"Is {number} even?", "answer": number % 2} for number in range(6)]
    (root / "tasks/test.jsonl").write_text("".join(json.dumps(each) + "\n" for each in asked))
    made = World(root, model, root / "first" / "output")
    made.output.mkdir(parents=True)
    (made.output / "report.json.7.partial").write_text("{")  # left by a killed attempt
    code = [document(each.__name__, inspect.getsource(each)) for each in (queue, bisect)]
    held_out(root / "small", *code)
    held_out(root / "prose", document("words.txt", "No questions here.\n" * 9))
    held_out(root / "empty")
    made.evaluate("first", SPEC, MORE)
    return made


# Bits per byte


def bits_in_fp32(world: World, text: str) -> float:
    """Compute the bits of a document with plain Transformers."""
    tokenizer = AutoTokenizer.from_pretrained(world.root / "model")
    model = AutoModelForCausalLM.from_pretrained(world.root / "model", dtype=torch.float32)
    stream = [tokenizer.eos_token_id, *tokenizer.encode(text)]
    bits = 0.0
    for begin in range(0, len(stream) - 1, POSITIONS - 2):  # one position is reserved for vLLM's token
        run = torch.tensor([stream[begin : begin + POSITIONS - 1]])
        with torch.no_grad():
            bits += model(run, labels=run).loss.item() * (run.numel() - 1) / math.log(2)
    return bits


def test_bits_are_those_of_plain_transformers_in_fp32(world: World) -> None:
    found = [line for line in lines(world.output, "documents") if line["set"] == "corpus"]
    documents = sorted(read_documents(world.root / "corpus", "held_out"), key=lambda each: each.id)[: len(found)]
    assert [line["id"] for line in found] == [each.id for each in documents]
    texts = [each.text.encode()[: line["bytes"]].decode() for line, each in zip(found, documents, strict=True)]
    expected = [bits_in_fp32(world, text) for text in texts]
    assert [line["bits"] for line in found] == pytest.approx(expected, rel=5e-3)
    size = SPEC["bits_per_byte"]["held_out_bytes"]
    assert sum(line["bytes"] for line in found) == world.report["sets"]["corpus"]["bytes"] == size
    assert world.value("bits_per_byte") == pytest.approx(math.fsum(expected) / size, rel=2e-3)


def held_out(folder: Path, *documents: Document) -> Path:
    folder.mkdir()
    writer = SplitWriter(folder, "held_out")
    for each in documents:
        writer.add(each)
    writer.close()
    write_manifest(folder, "corpus", {})
    return folder


@pytest.fixture(scope="module")
def alone(world: World) -> Path:
    """Run the evaluation with fewer evaluators, on one corpus."""
    return world.evaluate("alone", {name: SPEC[name] for name in ("bits_per_byte", "seed", "words")})


def test_further_sets_do_not_change_the_bits_of_the_first(world: World, alone: Path) -> None:
    assert report(alone)["sets"]["corpus"] == world.report["sets"]["corpus"]
    assert lines(alone, "documents") == [line for line in lines(world.output, "documents") if line["set"] == "corpus"]


def test_each_set_is_measured_as_far_as_it_goes(world: World) -> None:
    sets = world.report["sets"]
    assert list(sets) == ["corpus", "more.0", "more.1", "more.2"]
    assert sets["more.0"]["documents"] == 2
    assert sets["more.1"].keys() == {"documents", "bytes", "tokens", "bits_per_byte"}
    assert sets["more.2"] == {"documents": 0, "bytes": 0, "tokens": 0}
    for name, scores in sets.items():
        documents = [line for line in lines(world.output, "documents") if line["set"] == name]
        if documents:
            assert math.fsum(line["bits"] for line in documents) / scores["bytes"] == scores["bits_per_byte"]


def test_text_that_is_not_there_is_an_error_with_a_way_out(world: World) -> None:
    empty = World(world.root / "none", world.model, world.output)
    shutil.copytree(world.root / "model", empty.root / "model")
    held_out(empty.root / "corpus")
    with pytest.raises(EngineFailed, match=r"evaluate.bits_per_byte: .* no held-out text: .*`bits_per_byte: null`"):
        empty.evaluate("job", {"bits_per_byte": {}})


# Rewards


def test_every_row_is_asked_as_often_as_was_asked(world: World) -> None:
    found = [line for line in lines(world.output, "completions") if line["evaluator"] == "words"]
    assert len(found) == 120 and len({line["id"] for line in found}) == 40


def test_a_metric_is_the_mean_of_the_rewards_of_the_completions(world: World) -> None:
    found = [line["rewards"] for line in lines(world.output, "completions") if line["evaluator"] == "words"]
    assert world.value("words.length") == pytest.approx(sum(each["length"] for each in found) / 120)
    lucky = [each["lucky"] for each in found if each["lucky"] is not None]
    assert world.value("words.lucky") == pytest.approx(sum(lucky) / len(lucky))
    assert world.report["metrics"]["words.lucky"]["count"] == len(lucky) / 3  # rows to which the reward applies
    assert world.report["metrics"]["words.length"]["standard_error"] > 0


@pytest.mark.long
def test_training_rows_are_scored_beside_the_held_out_ones_and_change_none_of_their_results(world: World) -> None:
    rows(world.root / "both", *[{"prompt": f"def of_{at}(", "answer": "x"} for at in range(6)])
    learned = [{"prompt": f"def learned_{at}(", "answer": "x"} for at in range(9)]
    (world.root / "both" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in learned))
    write_manifest(world.root / "both", "rows", {})
    some = SPEC["words"] | {"data": "both", "samples": 2, "pass_at": [1]}
    without, output = (
        world.evaluate(f"train-{number}", {"seed": 7, "words": some | {"train_prompts": number}}) for number in (0, 5)
    )
    assert report(output)["metrics"] == report(without)["metrics"]
    assert lines(output, "completions") == lines(without, "completions")
    assert "train" not in report(without) and not (without / "train_completions.jsonl").exists()
    assert list(report(output)["train"]) == ["words.lucky", "words.length", "words.pass@1"]
    assert report(output)["train"]["words.length"]["count"] == report(output)["questions"]["words"]["train"] == 5
    asked = {line["prompt"] for line in lines(output, "train_completions")}
    assert len(asked) == 5 and asked <= {row["prompt"] for row in learned}
    facts = read_manifest(output).facts
    assert (
        "6 rows of data.both" in facts["measured"]["words"] and "5 of its training rows" in facts["measured"]["words"]
    )
    assert "train" not in facts  # so that no choice between models is made by them


@pytest.mark.long
def test_a_reward_that_applies_to_no_completion_has_no_metric_which_is_reported(world: World) -> None:
    rows(world.root / "unanswered", *[{"prompt": f"def area_{at}(", "answer": None} for at in range(3)])
    some = SPEC["words"] | {"data": "unanswered", "samples": 2, "pass_at": [1]}
    output = world.evaluate("never", {"words": some})
    assert not {"words.lucky", "words.pass@1"} & report(output)["metrics"].keys()
    assert "the reward lucky is None for all 6 completions" in (output.parent / "notices.jsonl").read_text()


def test_the_rewards_of_the_rows_own_answers_are_the_ceiling(world: World) -> None:
    assert world.report["ceiling"]["words.lucky"] == 1.0
    assert world.report["ceiling"]["chat.match"] == 1.0


def test_messages_go_through_the_chat_template_up_to_the_last_answer(world: World) -> None:
    found = [line for line in lines(world.output, "completions") if line["evaluator"] == "chat"]
    assert len(found) == 4
    assert [turn["role"] for turn in found[0]["prompt"]] == ["user", "assistant", "user"]
    assert found[0]["reference"][0]["content"].startswith("Well.")
    assert {len({line["completion"] for line in found if line["id"] == each["id"]}) for each in found} == {1}


def test_the_facts_are_the_reports(world: World) -> None:
    manifest = verify(world.output)
    assert manifest.facts.items() <= world.report.items()
    assert manifest.facts["label"] == "tiny"
    assert manifest.facts["model_digest"] == world.model.digest
    assert manifest.facts["headline"] == "words.lucky"
    digests = {name: read_manifest(world.root / name).digest[:12] for name in ("corpus", "words", "chat")}
    text = world.report["sets"]["corpus"]
    assert manifest.facts["measured"] == {
        "bits_per_byte": f"{text['documents']} held-out documents of corpus {digests['corpus']} "
        f"({size(text['bytes'])})",
        "words": f"40 rows of data.words {digests['words']}",
        "tasks": "lm-eval's mine.yaml",
        "chat": f"4 rows of data.chat {digests['chat']}",
    }
    assert list(world.report["metrics"]) == [
        "bits_per_byte", "words.lucky", "words.length", "words.distinct", "words.pass@1", "words.pass@2",
        "tasks.mine.acc", "chat.match", "chat.distinct",
    ]  # fmt: skip
    assert set(manifest.files) == {
        "report.json",
        "completions.jsonl",
        "documents.jsonl",
        "lm_eval.jsonl",
        "lm_eval/tasks.json",
    }


def test_an_evaluator_finds_the_same_whatever_else_is_asked(world: World, alone: Path) -> None:
    assert report(alone)["metrics"].items() <= world.report["metrics"].items()


@pytest.mark.long
def test_the_length_that_the_engine_is_opened_for_changes_no_result(world: World) -> None:
    """The length is a quarter of the model's positions, and windows of text fill it."""
    short = world.evaluate("short", {name: SPEC[name] for name in ("seed", "words", "chat")})
    assert report(short)["metrics"].items() <= world.report["metrics"].items()
    both = ("words", "chat")
    assert lines(short, "completions") == [
        line for line in lines(world.output, "completions") if line["evaluator"] in both
    ]


@pytest.mark.long
def test_a_model_with_many_positions_is_evaluated_with_as_many_as_are_needed(world: World) -> None:
    """A sequence with all of its positions would need 4 GiB of KV cache."""
    tiny_model(world.root / "long", positions=131_072, heads=128)
    output = world.evaluate("long-positions", {"words": SPEC["words"] | {"prompts": 4}}, model="long")
    assert report(output)["questions"]["words"]["asked"] == 4


def test_a_row_without_room_for_an_answer_is_left_out_counted_and_reported(world: World) -> None:
    questions = world.report["questions"]
    assert (questions["words"]["asked"], questions["words"]["too_long"]) == (40, 1)
    assert (questions["chat"]["asked"], questions["chat"]["too_long"]) == (4, 0)
    assert questions["tasks"] == {"requests": 12, "truncated": 0}
    (notice,) = (world.output.parent / "notices.jsonl").read_text().splitlines()
    assert "evaluate.words: 1 held-out rows were left out" in notice


@pytest.mark.long
def test_a_limit_of_the_length_leaves_out_and_truncates_more(world: World) -> None:
    limited = {"max_model_len": 24, "bits_per_byte": {"held_out_bytes": 500}, "tasks": SPEC["tasks"]}
    output = world.evaluate("limited", limited | {"words": SPEC["words"] | {"max_new_tokens": 17}})
    questions = report(output)["questions"]
    assert (questions["words"]["asked"], questions["words"]["too_long"]) == (10, 31)
    assert questions["tasks"]["truncated"] > 0


def test_no_room_for_a_prompt_is_an_error(world: World) -> None:
    some = SPEC["words"] | {"max_new_tokens": 4000}
    with pytest.raises(EngineFailed, match=rf"words.max_new_tokens: 4000: the model has {POSITIONS} positions"):
        world.evaluate("long", {"words": some})


def test_rows_of_text_ask_nothing(world: World) -> None:
    rows(world.root / "texts", {"text": "Once upon a time."})
    with pytest.raises(EngineFailed, match=r"evaluate.texts.data: .* the columns text and no prompt"):
        world.evaluate("refused", {"texts": {"data": "texts", "rewards": ["rewards.py:length"]}})


def test_a_reward_that_cannot_be_loaded_is_an_error_before_anything_is_sampled(world: World) -> None:
    (world.root / "unusable.py").write_text("import not_installed\ndef reward(completions, **_): return []")
    with pytest.raises(EngineFailed, match="not_installed"):
        world.evaluate("unusable", SPEC | {"words": SPEC["words"] | {"rewards": ["unusable.py:reward"]}})
    assert not (world.root / "unusable" / "work" / "answers").exists()


# Tasks of lm-eval


def test_tasks_of_lm_eval_are_metrics_and_a_file_in_its_own_format(world: World) -> None:
    found = json.loads((world.output / "lm_eval" / "tasks.json").read_text())
    assert found["results"]["mine"]["acc,none"] == world.value("tasks.mine.acc")
    assert found["n-shot"]["mine"] == 1
    metric = world.report["metrics"]["tasks.mine.acc"]
    assert (metric["count"], metric["unit"], metric["higher_is_better"]) == (6, "share", True)
    assert metric["standard_error"] == found["results"]["mine"]["acc_stderr,none"]
    assert "samples" not in found


def test_tasks_of_lm_eval_are_compared_document_by_document(world: World) -> None:
    items = read_results(world.output).items("tasks.mine.acc")
    assert len(items) == 6 and {evaluator for evaluator, _ in items} == {"tasks"}
    assert fmean(value for value, _ in items.values()) == pytest.approx(world.value("tasks.mine.acc"))


# Everything together


@pytest.mark.long
def test_a_killed_evaluation_resumes_from_its_saved_answers_to_the_same_bytes(world: World) -> None:
    job = world.root / "killed"
    job.mkdir()
    (job / "spec.json").write_text(json.dumps(world.request(SPEC, MORE)))
    command = [sys.executable, "-m", "baton.tasks.evaluate.evaluate", str(job)]
    with (job / "log.txt").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as engine:
        while not CheckpointFolder(job / "work" / "answers", "part-").complete():
            assert engine.poll() is None, (job / "log.txt").read_text()
            time.sleep(0.02)
        engine.kill()
    assert not (job / "output" / "manifest.json").exists()
    again = world.evaluate("killed", SPEC, MORE)
    assert verify(again).digest == verify(world.output).digest
    assert not (job / "work" / "answers").exists()


def test_a_decision_is_made_of_what_was_measured(world: World, alone: Path, tmp_path: Path) -> None:
    found = read(decided(tmp_path / "decide", world.output, world.output), "decision.json")
    values = {each["name"]: each["candidate"] for each in found["measures"]}
    assert values["old.bits_per_byte"] == pytest.approx(world.value("bits_per_byte"))
    for name in ("words.lucky", "words.length", "words.pass@2", "chat.match", "tasks.mine.acc"):
        assert values[name] == pytest.approx(world.value(name)), name
    assert (found["outcome"], found["improvement"]) == ("kept", 0)
    with pytest.raises(StageError, match="cannot be compared"):
        decided(tmp_path / "other", alone, world.output)


def test_a_damaged_model_is_refused_by_name_and_digest(world: World) -> None:
    shutil.copytree(world.root / "model", world.root / "damaged")
    weights = world.root / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(EngineFailed, match=rf"hf_model {world.model.digest[:12]} .*model.safetensors was changed"):
        world.evaluate("damaged-model", SPEC, model="damaged")
