"""The real engine on a tiny model: what it counts, what it writes, what it refuses."""

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from infra.launch import Engine, EngineFailed, run_engine
from tasks.data.documents import read_documents
from tasks.evaluate.spec import EvaluateSpec
from tasks.manifest import Manifest, verify
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

    def evaluate(self, name: str, spec: EvaluateSpec = SPEC, model: str = "model") -> Path:
        job_dir = self.root / name
        request: dict[str, Any] = {
            "stage": "evaluate",
            "kind": "eval_report",
            "spec": spec.model_dump(mode="json"),
            "inputs": {
                "model": {"path": str(self.root / model), "digest": self.model.digest},
                "corpus": {"path": str(self.root / "corpus"), "digest": self.corpus.digest},
            },
        }
        return run_engine(ENGINE, job_dir, request, title="evaluate-tiny")

    @property
    def report(self) -> dict[str, Any]:
        return dict(json.loads((self.output / "report.json").read_text()))

    @property
    def completions(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.output / "completions.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("world")
    made = World(root, tiny_model(root / "model"), tiny_corpus(root / "corpus"), root / "first" / "output")
    made.evaluate("first")
    return made


def test_bits_per_byte_are_those_of_plain_transformers_in_fp32(world: World) -> None:
    tokenizer = AutoTokenizer.from_pretrained(world.root / "model")
    model = AutoModelForCausalLM.from_pretrained(world.root / "model", dtype=torch.float32)
    bits, left = 0.0, SPEC.held_out_bytes
    for document in sorted(read_documents(world.root / "corpus", "held_out"), key=lambda each: each.id):
        data = document.text.encode()[:left]
        left -= len(data)
        stream = [tokenizer.eos_token_id, *tokenizer.encode(data.decode(errors="ignore"))]
        for begin in range(0, len(stream) - 1, POSITIONS - 2):  # one position is kept for vLLM's own token
            run = torch.tensor([stream[begin : begin + POSITIONS - 1]])
            with torch.no_grad():
                bits += model(run, labels=run).loss.item() * (run.numel() - 1) / math.log(2)
    assert left == 0
    assert world.report["held_out"]["bytes"] == SPEC.held_out_bytes
    assert world.report["bits_per_byte"] == pytest.approx(bits / SPEC.held_out_bytes, rel=2e-3)


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
