"""Our calls of vLLM, TRL, Megatron and Transformers fit their signatures, under either set of versions."""

import subprocess
import sys

import pytest

from tests.calls import LIBRARIES, calls
from tests.source import ROOT, files, third_party


@pytest.fixture(scope="module")
def said() -> list[str]:
    ours = [str(path) for path in files("tasks") if third_party(path) & LIBRARIES]
    words = [sys.executable, "-m", "tests.calls", *ours]
    ended = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    return [line.removeprefix(f"{ROOT}/") for line in ended.stdout.splitlines() if line.startswith(f"{ROOT}/")]


def test_every_call_fits_the_installed_signature(said: list[str]) -> None:
    assert not [line for line in said if not line.endswith(": fits")]


@pytest.mark.parametrize(
    ("file", "call"),
    [
        ("vllm/engine", "super().__init__"),
        ("vllm/engine", "SamplingParams"),
        ("vllm/hooks", "llm.collective_rpc"),
        ("posttrain/methods/sft", "SFTConfig"),
        ("posttrain/trl_hooks/sft", "super()._track_num_input_tokens"),
        ("posttrain/methods/dpo/trainer", "DPOConfig"),
        ("posttrain/methods/kto", "KTOConfig"),
        ("posttrain/methods/grpo/trainer", "GRPOConfig"),
        ("posttrain/trl_hooks/grpo", "super()._generate_and_score_completions"),
        ("pretrain/megatron_hooks", "def async_save"),
        ("pretrain/train_step", "DistributedDataParallel"),
    ],
)
def test_it_is_among_the_calls_that_are_looked_at(file: str, call: str, said: list[str]) -> None:
    assert any(line.startswith(f"tasks/{file}.py:") and f": {call}: " in line for line in said)


def wrong(source: str) -> list[str]:
    return [wrong for _, _, wrong in calls(source) if wrong]


def test_an_unknown_keyword_is_found() -> None:
    source = "from transformers import GenerationConfig, AutoConfig\nAutoConfig.register('a', int, again=1)"
    assert wrong(source) == ["got an unexpected keyword argument 'again'"]


def test_a_name_that_is_gone_is_found() -> None:
    assert wrong("from transformers import NoSuchModel") == ["transformers has no NoSuchModel"]
    assert wrong("import transformers\nprint(transformers.no_such)") == ["transformers has no no_such"]


def test_an_override_that_takes_less_is_found() -> None:
    source = "from transformers import TrainerCallback\nclass Ours(TrainerCallback):\n def on_save(self, args): ..."
    assert wrong(source) == ["got an unexpected keyword argument 'state'"]


def test_a_method_of_an_annotated_argument_is_bound() -> None:
    source = "from transformers import TrainerControl\ndef f(c: TrainerControl): c.state(1)"
    assert wrong(source) == ["too many positional arguments"]


def test_what_only_one_version_has_is_imported_under_a_condition() -> None:
    assert (
        wrong("import sys\nif sys.version_info < (3, 0):\n from transformers import NoSuchModel\nNoSuchModel()") == []
    )
