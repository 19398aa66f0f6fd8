"""The real engine on a tiny model: what it counts, what it writes, what it refuses."""

import bisect
import inspect
import json
import math
import queue
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from infra.launch import Engine, EngineFailed, run_engine
from tasks.data.documents import Document, SplitWriter, document, read_documents
from tasks.evaluate.spec import EvaluateSpec
from tasks.job import StageError
from tasks.manifest import Manifest, read_manifest, verify, write_manifest
from tests.promote.made import decided, read
from tests.serve.tiny import POSITIONS, tiny_corpus, tiny_model

ENGINE = Engine("evaluate", "tasks.evaluate.evaluate", "test")
SPEC = EvaluateSpec(prompts=40, max_new_tokens=16, held_out_bytes=12_345, seed=7)


@dataclass(frozen=True)
class World:
    """A model, a corpus, and an evaluation of the one on the other."""

    root: Path
    model: Manifest
    corpus: Manifest
    output: Path

    def evaluate(self, name: str, spec: EvaluateSpec = SPEC, model: str = "model", more: Sequence[Path] = ()) -> Path:
        job_dir = self.root / name
        request: dict[str, Any] = {
            "stage": "evaluate",
            "kind": "eval_report",
            "spec": spec.model_dump(mode="json"),
            "inputs": {
                "model": {"path": str(self.root / model), "digest": self.model.digest},
                "corpus": {"path": str(self.root / "corpus"), "digest": self.corpus.digest},
                **{
                    f"more.{number}": {"path": str(corpus), "digest": read_manifest(corpus).digest}
                    for number, corpus in enumerate(more)
                },
            },
        }
        return run_engine(ENGINE, job_dir, request, title="evaluate-tiny")

    @property
    def report(self) -> dict[str, Any]:
        return report(self.output)

    @property
    def completions(self) -> list[dict[str, Any]]:
        return lines(self.output, "completions")


def report(output: Path) -> dict[str, Any]:
    return dict(json.loads((output / "report.json").read_text()))


def lines(output: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("world")
    made = World(root, tiny_model(root / "model"), tiny_corpus(root / "corpus"), root / "first" / "output")
    made.output.mkdir(parents=True)
    (made.output / "report.json.7.partial").write_text("{")  # an earlier try was killed
    made.evaluate("first")
    return made


def test_what_a_killed_engine_left_is_no_part_of_the_report(world: World) -> None:
    assert set(verify(world.output).files) == {"report.json", "completions.jsonl", "documents.jsonl"}


def bits_in_fp32(world: World, text: str) -> float:
    """Of a document, by plain Transformers."""
    tokenizer = AutoTokenizer.from_pretrained(world.root / "model")
    model = AutoModelForCausalLM.from_pretrained(world.root / "model", dtype=torch.float32)
    stream = [tokenizer.eos_token_id, *tokenizer.encode(text)]
    bits = 0.0
    for begin in range(0, len(stream) - 1, POSITIONS - 2):  # one position is kept for vLLM's own token
        run = torch.tensor([stream[begin : begin + POSITIONS - 1]])
        with torch.no_grad():
            bits += model(run, labels=run).loss.item() * (run.numel() - 1) / math.log(2)
    return bits


def test_bits_are_those_of_plain_transformers_in_fp32(world: World) -> None:
    found = lines(world.output, "documents")
    documents = sorted(read_documents(world.root / "corpus", "held_out"), key=lambda each: each.id)[: len(found)]
    assert [line["id"] for line in found] == [each.id for each in documents]
    texts = [each.text.encode()[: line["bytes"]].decode() for line, each in zip(found, documents, strict=True)]
    expected = [bits_in_fp32(world, text) for text in texts]
    assert [line["bits"] for line in found] == pytest.approx(expected, rel=5e-3)
    assert sum(line["bytes"] for line in found) == world.report["sets"]["corpus"]["bytes"] == SPEC.held_out_bytes
    assert world.report["bits_per_byte"] == pytest.approx(math.fsum(expected) / SPEC.held_out_bytes, rel=2e-3)


def test_every_prompt_is_asked_once_and_judged(world: World) -> None:
    lines = world.completions
    assert len({line["id"] for line in lines}) == len(lines) == SPEC.prompts
    for name in ("parses", "not_trivial", "defined", "uses_context", "all_checks"):
        assert world.report[name] == sum(line[name] for line in lines) / len(lines)
    assert world.report["distinct"] == len({" ".join(line["statement"].split()) for line in lines}) / len(lines)


def test_the_ceiling_is_what_the_real_statements_reach(world: World) -> None:
    assert world.report["ceiling"]["parses"] == 1.0
    assert world.report["ceiling"]["all_checks"] > 0.7


def test_the_facts_are_the_reports(world: World) -> None:
    manifest = verify(world.output)
    assert manifest.facts.items() <= world.report.items()
    assert manifest.facts["label"] == "tiny"
    assert manifest.facts["model_digest"] == world.model.digest
    assert manifest.parents == {"model": world.model.digest, "corpus": world.corpus.digest}


def test_the_same_evaluation_gives_the_same_bytes(world: World) -> None:
    again = world.evaluate("again")
    assert verify(again).digest == verify(world.output).digest


def held_out(folder: Path, *documents: Document) -> Path:
    folder.mkdir()
    writer = SplitWriter(folder, "held_out")
    for each in documents:
        writer.add(each)
    writer.close()
    write_manifest(folder, "corpus", {}, {}, {})
    return folder


@pytest.fixture(scope="module")
def with_more(world: World) -> Path:
    """Of a small increment, which has no such many prompts or bytes, of one that is no code, and of an empty one."""
    code = [document(each.__name__, inspect.getsource(each)) for each in (queue, bisect)]
    more = [
        held_out(world.root / "small", *code),
        held_out(world.root / "words", document("words.txt", "No statements here.\n" * 9)),
        held_out(world.root / "empty"),
    ]
    return world.evaluate("more", more=more)


def test_further_sets_do_not_change_the_scores_of_the_first(world: World, with_more: Path) -> None:
    assert verify(with_more).facts == verify(world.output).facts
    assert report(with_more)["sets"]["corpus"] == world.report["sets"]["corpus"]
    for name in ("completions", "documents"):
        assert [line for line in lines(with_more, name) if line["set"] == "corpus"] == lines(world.output, name)


def test_each_set_is_measured_as_far_as_it_goes(with_more: Path) -> None:
    sets = report(with_more)["sets"]
    assert list(sets) == ["corpus", "more.0", "more.1", "more.2"]
    assert 0 < sets["more.0"]["prompts"] < SPEC.prompts
    assert sets["more.0"]["documents"] == 2
    assert {"parses", "all_checks", "bits_per_byte"} <= sets["more.0"].keys()
    assert sets["more.1"].keys() == {"documents", "bytes", "tokens", "prompts", "bits_per_byte"}
    assert sets["more.2"] == {"documents": 0, "bytes": 0, "tokens": 0, "prompts": 0}


def test_a_sets_rates_are_those_of_its_lines(with_more: Path) -> None:
    for name, scores in report(with_more)["sets"].items():
        documents, completions = (
            [line for line in lines(with_more, file) if line["set"] == name] for file in ("documents", "completions")
        )
        assert len(documents) == scores["documents"]
        assert sum(line["bytes"] for line in documents) == scores["bytes"]
        assert len({line["id"] for line in completions}) == len(completions) == scores["prompts"]
        if documents:
            assert math.fsum(line["bits"] for line in documents) / scores["bytes"] == scores["bits_per_byte"]
        if completions:
            assert sum(line["all_checks"] for line in completions) / len(completions) == scores["all_checks"]


def test_a_decision_is_made_of_what_was_measured(world: World, with_more: Path, tmp_path: Path) -> None:
    found = read(decided(tmp_path / "decide", with_more, with_more), "decision.json")
    values = {each["name"]: each["candidate"] for each in found["measures"]}
    sets = report(with_more)["sets"]
    for name in ("bits_per_byte", "parses", "all_checks"):
        assert values[f"old.{name}"] == pytest.approx(sets["corpus"][name])
    assert values["new.all_checks"] == pytest.approx(sets["more.0"]["all_checks"])  # the others have no prompts
    assert (found["outcome"], found["improvement"]) == ("kept", 0)
    with pytest.raises(StageError, match="cannot be compared"):
        decided(tmp_path / "other", with_more, world.output)


def test_too_few_prompts_is_an_error_with_a_way_out(world: World) -> None:
    with pytest.raises(EngineFailed, match=r"evaluate.prompts: 5000: .* have \d+ places .* hold out more"):
        world.evaluate("many", SPEC.model_copy(update={"prompts": 5000}))


def test_no_room_for_a_prompt_is_an_error(world: World) -> None:
    with pytest.raises(EngineFailed, match=rf"max_new_tokens: 4000: the model has {POSITIONS} positions"):
        world.evaluate("long", SPEC.model_copy(update={"max_new_tokens": 4000}))


def test_a_damaged_model_is_refused_by_name_and_digest(world: World) -> None:
    shutil.copytree(world.root / "model", world.root / "damaged")
    weights = world.root / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(EngineFailed, match=rf"hf_model {world.model.digest[:12]} .*model.safetensors was changed"):
        world.evaluate("refused", model="damaged")
