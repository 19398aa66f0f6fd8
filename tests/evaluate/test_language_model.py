"""Our model agrees with lm-eval's `hf` model on every kind of request, in fp32 with a small random model."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.serve.tiny import POSITIONS, tiny_model

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("vllm")]  # loads two libraries and models: half a minute

WORDS = ("parser", "argument", "self", "option", "value", "metavar", "help", "action", "group", "default")
DOCUMENTS = [
    {"question": f"the {word} of a {other} is", "choices": [f" {word}", " name or flags", " None"], "answer": at % 3}
    for at, (word, other) in enumerate(zip(WORDS, WORDS[::-1], strict=True))
]
DOCUMENTS[0]["question"] = "what is longer than the model's positions loses its beginning, " * 40
COMMON = """
dataset_path: json
dataset_kwargs: {data_files: {train: train.jsonl, test: test.jsonl}}
training_split: train
test_split: test
"""
TASKS = {
    "choice": """
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "choice_after_examples": """
output_type: multiple_choice
num_fewshot: 2
fewshot_split: train
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc}]
""",
    "continuation": """
output_type: loglikelihood
doc_to_text: "{{question}}"
doc_to_target: "{{choices[0]}}"
metric_list: [{metric: perplexity}, {metric: acc}]
""",
    "rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}} {{choices[0]}}"
metric_list: [{metric: bits_per_byte}, {metric: word_perplexity}]
""",
    "generation": """
output_type: generate_until
num_fewshot: 1
fewshot_split: train
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["\\n", "e"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
""",
    "generation_by_default": """
output_type: generate_until
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: "\\n", max_new_tokens: 12, num_beams: 1, temperature: 0.0, top_p: 0.95}
metric_list: [{metric: exact_match}, {metric: bleu}]
""",
    "generation_of_what_is_unsaid": """
output_type: generate_until
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 12}
metric_list: [{metric: exact_match}]
""",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return lm-eval's results for each model."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    from baton.tasks.evaluate.language_model import VLLMModel
    from baton.tasks.evaluate.model_info import read_model_info
    from baton.tasks.evaluate.task_configs import load_config
    from baton.tasks.vllm.engine import open_engine

    root = tmp_path_factory.mktemp("lm_eval")
    tiny_model(root / "model")
    (root / "train.jsonl").write_text("".join(json.dumps(each) + "\n" for each in DOCUMENTS[1:]))
    (root / "test.jsonl").write_text("".join(json.dumps(each) + "\n" for each in DOCUMENTS))
    for name, text in TASKS.items():
        (root / f"{name}.yaml").write_text(f"task: {name}\n{COMMON}{text}")
    llm = open_engine(root / "model", max_model_len=POSITIONS, seed=0, dtype="float32")
    models = {
        "ours": VLLMModel(lambda: llm, read_model_info(root / "model")),
        "theirs": HFLM(
            str(root / "model"), dtype="float32", device="cpu", batch_size=4, max_length=POSITIONS - 2, backend="causal"
        ),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISABLE_MULTIPROC", "1")
        patch.setenv("HF_DATASETS_CACHE", str(root / "cache"))
        return {
            name: simple_evaluate(
                model, tasks=[load_config(root / f"{task}.yaml", root) for task in TASKS], bootstrap_iters=10
            )
            for name, model in models.items()
        }


def answers(results: dict[str, dict[str, Any]], task: str) -> list[tuple[Any, Any]]:
    """Return (ours, theirs) for every request."""
    both: list[tuple[Any, Any]] = []
    for ours, theirs in zip(*(results[model]["samples"][task] for model in ("ours", "theirs")), strict=True):
        both += zip(ours["resps"], theirs["resps"], strict=True)
    return both


@pytest.mark.parametrize("task", ["choice", "choice_after_examples", "continuation"])
def test_log_likelihoods_agree_and_greedy_is_the_same(results: dict[str, dict[str, Any]], task: str) -> None:
    found = answers(results, task)
    assert len(found) >= len(DOCUMENTS)
    for (ours,), (theirs,) in found:
        assert float(ours[0]) == pytest.approx(float(theirs[0]), abs=1e-3)
        assert str(ours[1]) == str(theirs[1])


def test_rolling_log_likelihoods_agree_over_several_windows(results: dict[str, dict[str, Any]]) -> None:
    found = answers(results, "rolling")
    assert len(found) == len(DOCUMENTS)
    for (ours,), (theirs,) in found:
        assert float(ours) == pytest.approx(float(theirs), abs=1e-3)


@pytest.mark.parametrize("task", ["generation", "generation_by_default", "generation_of_what_is_unsaid"])
def test_generations_are_the_same(results: dict[str, dict[str, Any]], task: str) -> None:
    found = answers(results, task)
    assert [ours for ours, _ in found] == [theirs for _, theirs in found]
    assert any(text for (text,), _ in found)


def test_a_generation_ends_before_the_first_stop(results: dict[str, dict[str, Any]]) -> None:
    found = answers(results, "generation")
    assert all("e" not in text and "\n" not in text for (text,), _ in found)


def test_the_lengths_of_requests_are_known_without_an_engine(tmp_path: Path) -> None:
    from lm_eval.api.instance import Instance

    from baton.tasks.evaluate.language_model import Lengths
    from baton.tasks.evaluate.model_info import read_model_info

    tiny_model(tmp_path)
    info = read_model_info(tmp_path)
    long = DOCUMENTS[0]["question"]
    asked: list[tuple[str, tuple[Any, ...]]] = [
        ("loglikelihood", ("the word", " parser")),
        ("generate_until", ("the word", {"max_gen_toks": 30})),
        ("generate_until", (long, {"max_gen_toks": 30})),
        ("loglikelihood_rolling", ("the word",)),
    ]
    requests = [Instance(kind, {}, arguments, at) for at, (kind, arguments) in enumerate(asked)]
    lengths = Lengths(lambda: None, info)
    lengths.measure(requests[:2])
    assert lengths.longest == len(info.tokens("the word")) + 30 and lengths.truncated == 0
    lengths.measure(requests)
    assert POSITIONS - 2 <= lengths.longest <= POSITIONS
    assert (lengths.requests, lengths.truncated) == (6, 1)


def test_an_empty_choice_is_refused(tmp_path: Path) -> None:
    """An empty choice would always win, since empty text has the highest log-probability."""
    from lm_eval.api.instance import Instance

    from baton.tasks.core.job import StageError
    from baton.tasks.evaluate.language_model import Lengths
    from baton.tasks.evaluate.model_info import read_model_info

    tiny_model(tmp_path)
    lengths = Lengths(lambda: None, read_model_info(tmp_path))
    with pytest.raises(StageError, match="empty choice after the context that ends with 'the answer is'"):
        lengths.measure([Instance("loglikelihood", {}, ("the answer is", choice), 0) for choice in (" a", "")])


def test_every_metric_is_the_same(results: dict[str, dict[str, Any]]) -> None:
    for task, of_ours in results["ours"]["results"].items():
        for name, value in of_ours.items():
            theirs = results["theirs"]["results"][task][name]
            assert value == (pytest.approx(theirs, rel=1e-4) if isinstance(value, float) else theirs), (task, name)
