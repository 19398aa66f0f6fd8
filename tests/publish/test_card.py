"""The statements of a card are true, and its code loads the published model."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from baton.tasks.convert.base_license import license_of
from baton.tasks.core.job import Job, open_job
from baton.tasks.core.manifest import read_manifest, write_manifest
from baton.tasks.models.adapter_base import ADAPTER, model_of
from baton.tasks.models.model_files import copy_small_files
from baton.tasks.posttrain.adapter_files import write_adapter
from baton.tasks.posttrain.adapter_spec import LoRASpec
from baton.tasks.publish.card import model_card
from baton.tasks.publish.chain import chain, shown_spec
from baton.tasks.publish.copy import copy_model
from baton.tasks.publish.spec import PublishSpec
from baton.tasks.serve.server import open_served
from tests.posttrain.tiny import reward, tiny_model
from tests.publish.conftest import Chain

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}<|im_start|>assistant:"
)
IDS = torch.arange(40).unsqueeze(0)


def logits(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=ids).logits
    return found


def chat_model(folder: Path) -> Path:
    tiny_model(folder, turns=True)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    write_manifest(folder, "hf_model", read_manifest(folder).facts)
    return folder


def tuned_adapter(base: Path, folder: Path) -> Path:
    """Write an adapter with random weights, as a stage does."""
    torch.manual_seed(0)
    settings = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    whole = get_peft_model(AutoModelForCausalLM.from_pretrained(base), settings)
    weights = {name: weight for name, weight in whole.state_dict().items() if "lora_" in name}
    entry = {"path": str(base), "digest": read_manifest(base).digest}
    job = Job(folder, "sft", "hf_model", {"learning_rate": 0.001}, {"model": entry})
    job.empty_output()
    write_adapter(job, LoRASpec(rank=4, alpha=8), weights)
    copy_small_files(base, job.output)
    facts = read_manifest(base).facts | {"label": "sft", "base": {"digest": entry["digest"], "place": str(base)}}
    job.finish(**facts)
    return job.output


def published(folder: Path, spec: dict[str, Any], **inputs: Path) -> Path:
    """Write the folder with the model's files and its card, without a registry."""
    folder.mkdir()
    told = {name: {"path": str(path), "digest": read_manifest(path).digest} for name, path in inputs.items()}
    request = {"stage": "publish", "kind": "published_model", "spec": spec, "inputs": told}
    (folder / "spec.json").write_text(json.dumps(request))
    job = open_job(folder)
    files = model_of(job)
    copy_model(files, job.output)
    card = model_card(job.spec(PublishSpec), files, read_manifest(files.directory), chain(job), [])
    (job.output / "README.md").write_text(card)
    return job.output


def run_code(card: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run a card's code in its folder, as a reader would."""
    (code,) = (card / "README.md").read_text().split("```python\n")[1:]
    monkeypatch.chdir(card)
    found: dict[str, Any] = {}
    exec(code.partition("```")[0], found)
    return found


@pytest.mark.parametrize("kind", ["whole", "chat", "adapter"])
def test_its_code_gives_the_logits_of_the_model(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = chat_model(tmp_path / "model") if kind == "chat" else tiny_model(tmp_path / "model")
    expected = AutoModelForCausalLM.from_pretrained(model)
    inputs = {"model": model}
    if kind == "adapter":
        adapter = tuned_adapter(model, tmp_path / "job")
        untuned, inputs = logits(expected), {"model": adapter, "model.base": model}
        expected = PeftModel.from_pretrained(expected, adapter / ADAPTER)
        assert (logits(expected) - untuned).abs().max() > 0.1

    folder = published(tmp_path / "published", {}, **inputs)
    loaded = run_code(folder, monkeypatch)

    assert torch.equal(logits(loaded["model"]), logits(expected))
    plain = logits(AutoModelForCausalLM.from_pretrained(folder))  # loads the model with the adapter in bf16
    assert (plain - logits(expected)).abs().max() <= (0.02 if kind == "adapter" else 0)
    text = "<|im_start|>user: Hello<|im_end|><|im_start|>assistant:" if kind == "chat" else "Once"
    expected_ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids
    assert loaded["inputs"]["input_ids"][0].tolist() == expected_ids


def test_a_published_adapter_is_served_beside_its_base(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    adapter = tuned_adapter(model, tmp_path / "job")
    folder = published(tmp_path / "published", {}, **{"model": adapter, "model.base": model})
    write_manifest(folder, "published_model", {"label": "sft"}, {}, {"model": read_manifest(adapter).digest})
    words = open_served(folder).arguments()
    assert words[:3] == ["--model", str(folder / "base"), "--tokenizer"]
    assert (Path(words[3]) / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    digest = read_manifest(adapter).digest
    names = words.index("--served-model-name")
    assert words[names + 1 : names + 4] == [f"base-of-{digest}", digest, "sft"]
    assert words[-1] == f"{digest}={folder}"
    assert (folder / "base" / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


def test_the_best_model_keeps_the_stage_that_trained_it(sealed: Chain, tmp_path: Path) -> None:
    """The card's history leaves out models of the run that the published model was not trained from."""
    rows, other = tmp_path / "rows", tmp_path / "other"
    rows.mkdir()
    (rows / "train.jsonl").write_text("{}")
    made = write_manifest(rows, "rows", {"rows": 7}, {"path": "/srv/private/chat.jsonl"})
    shutil.copytree(sealed.paths["base"], other)
    (other / "generation_config.json").write_text("{}")
    parents = {"model": sealed.manifests["model"].digest, "rows": made.digest}
    write_manifest(other, "hf_model", sealed.manifests["model"].facts | {"label": "later"}, {"steps": 9}, parents)
    best = tmp_path / "best"
    shutil.copytree(sealed.paths["model"], best)
    parents = {"model": sealed.manifests["base"].digest, "rows": made.digest}
    write_manifest(best, "hf_model", sealed.manifests["model"].facts, {"learning_rate": 1e-4}, parents)

    text = (
        published(
            tmp_path / "published", {}, **{"model": best, "models.0": sealed.paths["base"], "models.1": other},
            **{"parts.rows_1": rows, "parts.corpus": sealed.paths["corpus"]},
        ) / "README.md"
    ).read_text()  # fmt: skip

    assert "made by Baton: base → grpo." in text and "later" not in text
    assert "learning_rate: 0.0001" in text and "| rows_1 | rows |" in text and "rows 7" in text


@pytest.mark.parametrize("conversational", [False, True])
def test_messages_are_for_a_model_that_was_tuned_on_them(sealed: Chain, tmp_path: Path, conversational: bool) -> None:
    """A chat template alone is not enough, since each tokenizer that Baton trains has one."""
    rows, model = tmp_path / "rows", tmp_path / "model"
    rows.mkdir()
    parents = {"rows": write_manifest(rows, "rows", {"conversational": conversational}).digest}
    shutil.copytree(sealed.paths["model"], model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    write_manifest(model, "hf_model", sealed.manifests["model"].facts, {}, parents)

    folder = published(tmp_path / "published", {}, **{"model": model, "parts.rows_1": rows})

    text = (folder / "README.md").read_text()
    assert ("tuned with: give it messages" in text) == ("apply_chat_template" in text) == conversational


def test_a_chat_model_that_was_tuned_on_text_prompts_is_asked_with_one(tmp_path: Path) -> None:
    """An existing model with a template is asked with messages, unless what it was tuned on had none."""
    base, tuned, rows = chat_model(tmp_path / "base"), chat_model(tmp_path / "tuned"), tmp_path / "rows"
    rows.mkdir()
    (rows / "train.jsonl").write_text("{}")
    made = write_manifest(rows, "rows", {"conversational": False}, {}, {})
    parents = {"model": read_manifest(base).digest, "rows": made.digest}
    (tuned / "generation_config.json").write_text("{}")
    write_manifest(tuned, "hf_model", read_manifest(base).facts | {"label": "sft"}, {}, parents)

    untuned = published(tmp_path / "untuned", {}, model=base)
    folder = published(tmp_path / "published", {}, **{"model": tuned, "models.0": base, "parts.rows_1": rows})

    assert "apply_chat_template" in (untuned / "README.md").read_text()
    text = (folder / "README.md").read_text()
    assert "apply_chat_template" not in text and "# use a text such as the prompts that it was tuned on" in text


def test_the_card_names_the_library_that_loads_it(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    adapter = tuned_adapter(model, tmp_path / "job")
    folders = {
        "transformers": published(tmp_path / "whole", {}, model=model),
        "peft": published(tmp_path / "adapter", {}, **{"model": adapter, "model.base": model}),
    }
    for library, folder in folders.items():
        assert ModelCard.load(folder / "README.md").data.library_name == library


@pytest.mark.parametrize(
    ("said", "recipe", "expected", "told"),
    [
        ("license: llama3", None, "llama3", "| license of the model that it started from | llama3 |"),
        ("license: other\nlicense_name: my-terms", None, "other", "started from | my-terms |"),
        ("license: llama3", "mit", "mit", "| license of the model that it started from | llama3 |"),
        (None, "mit", "mit", "| license | mit |"),
        (None, None, None, "## Use"),
        ("license: [not, text", None, None, "## Use"),
    ],
)
def test_the_license_is_that_of_the_base_or_of_the_recipe(
    said: str | None, recipe: str | None, expected: str | None, told: str, tmp_path: Path
) -> None:
    model = tiny_model(tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text(f"---\n{said}\n---\n# A model\n" if said else "# A model\n")
    facts = read_manifest(model).facts | {"license": license_of(model)}
    write_manifest(model, "hf_model", facts, {"model": "/srv/models/theirs", "state": "s"})
    folder = published(tmp_path / "published", {"license": recipe}, model=model)
    assert ModelCard.load(folder / "README.md").data.license == expected
    assert told in (folder / "README.md").read_text()


def test_no_path_of_the_machine_is_shown(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    spec = {"data": f"{tmp_path}/my rows/a.jsonl", "rewards": [reward(tmp_path / "rewards")], "paths": {str(model): 1},
            "note": f"from file://{model} and {model}, not from https://host/a/b"}  # fmt: skip
    adapter = tuned_adapter(model, tmp_path / "job")
    write_manifest(adapter, "hf_model", read_manifest(adapter).facts, spec, read_manifest(adapter).parents)
    text = (published(tmp_path / "published", {}, **{"model": adapter, "model.base": model}) / "README.md").read_text()
    assert str(tmp_path) not in text
    shown = shown_spec(read_manifest(adapter))
    assert shown["data"] == "…/a.jsonl" and shown["note"] == "from …/model and …/model, not from https://host/a/b"
    assert shown["rewards"][0]["function"]["source"]["twice.py"].startswith("blake3 ")


def increment(folder: Path, number: int, known: list[Path]) -> Path:
    """The corpus of a night whose source has lost a document of each earlier night."""
    folder.mkdir()
    (folder / "train-00000.txt").write_text(str(number))
    earlier = {f"known.{night}": read_manifest(path).digest for night, path in enumerate(known)}
    write_manifest(folder, "corpus", {"documents": 4321, "gone": number, "known_digest": "k"}, {}, earlier)
    return folder


def test_a_card_does_not_grow_by_the_nights_that_a_corpus_was_compared_with(tmp_path: Path) -> None:
    corpora: list[Path] = []
    for number in range(30):
        corpora.append(increment(tmp_path / f"corpus-{number}", number, corpora))
    model = tiny_model(tmp_path / "model")
    parents = {"corpus": read_manifest(corpora[-1]).digest}
    write_manifest(model, "hf_model", read_manifest(model).facts, {}, parents)
    inputs = {f"parts.corpus_{number}": path for number, path in enumerate(corpora)}
    text = (published(tmp_path / "published", {}, model=model, **inputs) / "README.md").read_text()
    assert "4,321" in text and "corpus_29" in text
    assert not [number for number in range(29) if f"corpus_{number} " in text]
    assert "known" not in text and "gone" not in text


def test_a_card_says_what_it_does_not_describe(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    corpus = increment(tmp_path / "corpus", 7, [])
    parents = {"corpus": read_manifest(corpus).digest}
    write_manifest(model, "hf_model", read_manifest(model).facts, {}, parents)
    text = (published(tmp_path / "whole", {}, model=model, corpus=corpus) / "README.md").read_text()
    assert "trained on the data above alone" in text
    write_manifest(model, "hf_model", read_manifest(model).facts, {}, parents | {"resume.0": "ab" * 32})
    text = (published(tmp_path / "continued", {}, model=model, corpus=corpus) / "README.md").read_text()
    assert "resume.0 abababababab |" in text
    assert "data of earlier versions, which their cards describe: what abababababab was\n  made from" in text
    assert "data above alone" not in text
