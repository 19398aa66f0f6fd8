"""Loading of an existing Hugging Face model."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from baton.tasks.convert.load_hf import work
from baton.tasks.convert.load_hf_spec import LoadHFSpec, StartFromSpec
from baton.tasks.core.job import StageError, open_job
from baton.tasks.core.manifest import ArtifactError, verify
from baton.tasks.models.agreement import MOST_TOKENS, read_probe
from tests.convert.tiny import make_tokenizer
from tests.pretrain.tiny import VOCABULARY, write_job
from tests.s3 import S3


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder as save_pretrained writes it."""
    folder = make_tokenizer(tmp_path / "model")
    (folder / "manifest.json").unlink()
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        eos_token_id=0,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def change(model: Path, **fields: object) -> None:
    """Change fields of config.json; None removes a field."""
    config = json.loads((model / "config.json").read_text()) | fields
    (model / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def rewrite(model: Path, work: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors in place."""
    found = load_file(model / "model.safetensors")
    work(found)
    save_file(found, model / "model.safetensors", {"format": "pt"})


def load_hf(model: Path, job: Path) -> tuple[int, dict[str, str]]:
    """Run `baton.tasks.core.job.main` in this process; returns the exit code and result.json."""
    write_job(job, "load_hf", "hf_model", LoadHFSpec(model=str(model)).model_dump(mode="json"))
    try:
        work(open_job(job))
    except (StageError, ArtifactError) as error:
        return 1, {"error": str(error), "kind": type(error).__name__}
    return 0, json.loads((job / "result.json").read_text())


@pytest.mark.long
def test_a_loaded_model_is_the_same_model(model: Path, tmp_path: Path) -> None:
    job = tmp_path / "job"
    write_job(job, "load_hf", "hf_model", LoadHFSpec(model=str(model)).model_dump(mode="json"))
    completed = subprocess.run(
        [sys.executable, "-m", "baton.tasks.convert.load_hf", str(job)], capture_output=True, check=False
    )
    assert completed.returncode == 0, completed.stderr.decode()[-2000:]
    facts = verify(tmp_path / "job" / "output").facts
    assert (facts["label"], facts["dtype"], facts["max_positions"]) == ("base", "bf16", 128)
    before, after = (AutoModelForCausalLM.from_pretrained(path) for path in (model, tmp_path / "job" / "output"))
    for name, weight in before.state_dict().items():
        assert torch.equal(weight, after.state_dict()[name]), name


def test_a_model_at_an_address_is_downloaded_and_loaded(
    s3: S3, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the weights and the files that are read with them are downloaded."""
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))
    key = uuid4().hex
    (model / "original").mkdir()
    (model / "original/consolidated.pth").write_bytes(b"pickled")
    for path in model.rglob("*"):
        if path.is_file():
            s3.write(f"{key}/{path.relative_to(model)}", path.read_bytes())
    with s3.flyte(tmp_path):
        spec = LoadHFSpec(model=f"{s3.address}/{key}")
        assert spec.missing() == []
        assert spec.max_positions() == 128
        state = spec.pinned().state
        write_job(tmp_path / "job", "load_hf", "hf_model", spec.model_dump(mode="json"))
        work(open_job(tmp_path / "job"))
        s3.delete(f"{key}/config.json", f"{key}/model.safetensors")
        assert [problem.allowed.partition(",")[0] for problem in spec.missing()] == [
            "a folder with a valid config.json",
            "a folder with *.safetensors (pickled weights are not read)",
        ]
        assert spec.pinned().state != state
    verify(tmp_path / "job/output")
    (kept,) = (path for path in (tmp_path / "cache/brought").iterdir() if path.is_dir())
    assert not (kept / "original").exists()
    assert load_file(kept / "model.safetensors").keys() == load_file(model / "model.safetensors").keys()


def test_its_files_arrive_unchanged(model: Path, tmp_path: Path) -> None:
    """The files include several shards, norms in another type than in config.json, and a generation config that
    Transformers reads but does not save."""
    rewrite(model, lambda found: found.update({name: found[name].float() for name in found if "norm" in name}))
    found = load_file(model / "model.safetensors")
    halves = {"a.safetensors": sorted(found)[::2], "b.safetensors": sorted(found)[1::2]}
    for file, names in halves.items():
        save_file({name: found[name] for name in names}, model / file, {"format": "pt"})
    (model / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {name: file for file, names in halves.items() for name in names}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    (model / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.6, "eos_token_id": [1, 0]}')
    code, result = load_hf(model, tmp_path / "job")
    assert code == 0, result["error"]
    output = tmp_path / "job/output"
    for name in (*halves, "model.safetensors.index.json", "config.json", "generation_config.json"):
        assert (output / name).read_bytes() == (model / name).read_bytes(), name
    assert not (tmp_path / "job/notices.jsonl").exists()
    assert verify(output).facts["dtype"] == "bf16"


@pytest.mark.parametrize(
    ("config", "generation", "wanted"),
    [
        (None, {"eos_token_id": [1, 0]}, {"eos_token_id": [1, 0]}),
        (None, {"top_k": 5}, {"top_k": 5}),  # from the tokenizer; vLLM knows it
        ([1, 2], {"top_k": 5}, {"top_k": 5, "eos_token_id": [1, 2, 0]}),
        (3, None, {"eos_token_id": [3, 0]}),
        (None, None, {"eos_token_id": [0]}),
    ],
)
def test_generation_ends_at_every_token_that_is_said_to_end_it(
    model: Path, tmp_path: Path, config: object, generation: dict[str, object] | None, wanted: dict[str, object]
) -> None:
    change(model, eos_token_id=config)
    (model / "generation_config.json").unlink()
    if generation is not None:
        (model / "generation_config.json").write_text(json.dumps(generation))
    assert load_hf(model, tmp_path / "job")[0] == 0
    assert json.loads((tmp_path / "job/output/generation_config.json").read_text()) == wanted


@pytest.mark.parametrize(
    ("generation", "problem"),
    [
        ({"temperature": "hot"}, "temperature is 'hot'; it should be a valid number: correct or remove it"),
        ({"early_stopping": "soon"}, "`early_stopping` must be a boolean or 'never'"),  # Transformers' message
        ({"pad_token_id": "0"}, "correct or remove the field"),  # a TypeError in Transformers
    ],
)
def test_a_generation_config_that_vllm_or_transformers_would_refuse_later(
    model: Path, tmp_path: Path, generation: dict[str, object], problem: str
) -> None:
    (model / "generation_config.json").write_text(json.dumps(generation))
    error = load_hf(model, tmp_path / "job")[1]["error"]
    assert "generation_config.json" in error and problem in error


def test_what_vllm_does_not_apply_of_a_generation_config_is_said(model: Path, tmp_path: Path) -> None:
    given = {"eos_token_id": 0, "stop_strings": ["User:"], "num_beams": 1, "forced_eos_token_id": 3}
    (model / "generation_config.json").write_text(json.dumps(given))
    assert load_hf(model, tmp_path / "job")[0] == 0
    assert "has forced_eos_token_id 3, stop_strings ['User:'], which Transformers applies and vLLM does not" in (
        tmp_path / "job/notices.jsonl"
    ).read_text().replace("\\", "")


def test_without_a_token_that_ends_a_text_it_is_refused(model: Path, tmp_path: Path) -> None:
    change(model, eos_token_id=None)
    (model / "generation_config.json").unlink()
    tokenizer = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"eos_token": None}))
    assert "ends a text: set eos_token" in load_hf(model, tmp_path / "job")[1]["error"]


def tied_to_another(model: Path) -> None:
    change(model, tie_word_embeddings=True)


def tied_by_default(model: Path) -> None:
    """Save a Gemma model, whose class ties the embeddings unless its config says otherwise."""
    config = GemmaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        eos_token_id=0,
    )
    GemmaForCausalLM(config).save_pretrained(model)
    change(model, tie_word_embeddings=None)
    rewrite(model, lambda found: found.update({"lm_head.weight": found["model.embed_tokens.weight"] + 1}))


def bidirectional(model: Path) -> None:
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        eos_token_id=0,
        initializer_range=1.0,  # a trained model attends as sharply
    )
    BertForMaskedLM(config).save_pretrained(model)


def grouped(model: Path) -> None:
    """Save a model whose number of experts is not divisible by the number of groups."""
    config = DeepseekV3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        first_k_dense_replace=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=16,
        v_head_dim=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=3,
        topk_group=1,
        max_position_embeddings=128,
        eos_token_id=0,
    )
    DeepseekV3ForCausalLM(config).save_pretrained(model)


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    return lambda model: rewrite(model, change)


def prefixed(prefix: str) -> Callable[[Path], None]:
    def rename(found: dict[str, torch.Tensor]) -> None:
        for name in [*found]:
            found[f"{prefix}{name}"] = found.pop(name)

    return tensors(rename)


UP = "model.layers.1.mlp.up_proj.weight"
FP8 = torch.float8_e4m3fn
WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "an output beside a tied embedding": (tied_to_another, "lm_head.weight differs from model.embed_tokens.weight"),
    "the same by default": (tied_by_default, "lm_head.weight differs from model.embed_tokens.weight"),
    "a tensor left over": (tensors(lambda found: found.update(extra=torch.ones(2))), "extra has no place in Qwen3"),
    "another shape": (
        tensors(lambda found: found.update({UP: found[UP][1:].clone()})),
        f"{UP} is [63, 32]; the config says [64, 32]",
    ),
    "a compiled model": (prefixed("_orig_mod."), "names begin with _orig_mod."),
    "a wrapped model": (prefixed("module."), "names begin with module."),
    "quantized by its config": (
        lambda model: change(model, quantization_config={"quant_method": "gptq", "bits": 4}),
        "its weights are quantized (config.json: gptq)",
    ),
    "quantized tensors": (tensors(lambda found: found.update({UP: found[UP].to(FP8)})), f"{UP} (F8_E4M3)"),
    "NaN": (tensors(lambda found: found[UP].fill_(torch.nan)), f"{UP} has NaN or infinite values"),
    "infinity": (
        tensors(lambda found: found["model.norm.weight"].fill_(torch.inf)),
        "model.norm.weight has NaN or inf",
    ),
    "an end of text that is no token": (
        lambda model: change(model, eos_token_id=260),
        "eos_token_id 260 is not from 0",
    ),
    "a missing shard": (
        lambda model: (
            (model / "model.safetensors").rename(model / "model-1.safetensors")
            and (model / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-2.safetensors"}}')
        ),
        "lists model-2.safetensors, which the folder does not have",
    ),
    "a window that its class does not have": (
        lambda model: change(model, model_type="llama", architectures=["LlamaForCausalLM"], sliding_window=64),
        "sliding_window 64, which vLLM applies and Transformers' LlamaConfig does not have",
    ),
    "an encoder that Transformers loads": (bidirectional, "BertLMHeadModel is no causal language model"),
    "an encoder": (
        lambda model: change(model, model_type="t5", architectures=["T5ForConditionalGeneration"]),
        "cannot be used as a causal language model",
    ),
    "a rotary base of zero": (
        lambda model: change(model, rope_parameters={"rope_type": "default", "rope_theta": 0.0}),
        "the log-probabilities that Qwen3ForCausalLM gives a short text are NaN",
    ),
    "what only its forward pass refuses": (grouped, "cannot be used as a causal language model: RuntimeError"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_model_that_cannot_be_used_as_it_is(case: str, model: Path, tmp_path: Path) -> None:
    damage, words = WRONG[case]
    damage(model)
    code, result = load_hf(model, tmp_path / "job")
    assert code == 1
    assert result["kind"] == "StageError" and words in result["error"]
    assert "\n" not in result["error"]


def test_tensors_with_other_names_get_those_that_vllm_reads(model: Path, tmp_path: Path) -> None:
    """A base model has such names, since its class is not the one that is tuned."""
    rewrite(model, lambda found: [found.update({name.removeprefix("model."): found.pop(name)}) for name in [*found]])
    change(model, architectures=["Qwen3Model"])
    assert load_hf(model, tmp_path / "job")[0] == 0
    output = tmp_path / "job/output"
    assert UP in load_file(output / "model.safetensors")
    assert json.loads((output / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
    assert len((tmp_path / "job/notices.jsonl").read_text().splitlines()) == 2


def test_values_beyond_the_type_that_its_config_names(model: Path, tmp_path: Path) -> None:
    """The tensors determine the type of the weights."""
    rewrite(model, lambda found: found["model.norm.weight"].fill_(1e5))
    change(model, dtype="float16")
    assert load_hf(model, tmp_path / "job")[0] == 0


def test_buffers_of_old_checkpoints_are_no_reason_to_refuse_a_model(model: Path, tmp_path: Path) -> None:
    """Transformers 4 saved these buffers with GPT-2, and GPT2LMHeadModel of 5.17 does not expect the second one."""
    GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=2, eos_token_id=0)).save_pretrained(
        model
    )
    attention = "transformer.h.0.attn"
    masks = {f"{attention}.bias": torch.ones(1, 1, 8, 8).bool(), f"{attention}.masked_bias": torch.tensor(-1e4)}
    rewrite(model, lambda found: found.update(masks))
    code, result = load_hf(model, tmp_path / "job")
    assert code == 0, result["error"]
    assert f"are not used: {attention}.bias, {attention}.masked_bias" in (tmp_path / "job/notices.jsonl").read_text()


def test_an_output_that_repeats_the_embedding_is_no_other_model(model: Path, tmp_path: Path) -> None:
    change(model, tie_word_embeddings=True)
    rewrite(model, lambda found: found.update({"lm_head.weight": found["model.embed_tokens.weight"].clone()}))
    assert load_hf(model, tmp_path / "job")[0] == 0


def test_it_leaves_what_transformers_computes(model: Path, tmp_path: Path) -> None:
    assert load_hf(model, tmp_path / "job")[0] == 0
    found = read_probe(tmp_path / "job/output")
    assert found is not None and len(found.logprobs) == len(found.ids) - 1 == MOST_TOKENS - 1
    logits = AutoModelForCausalLM.from_pretrained(model)(torch.tensor([found.ids])).logits[0, :-1].float()
    expected = logits.log_softmax(-1).gather(1, torch.tensor(found.ids[1:]).unsqueeze(1)).squeeze(1)
    assert torch.allclose(torch.tensor(found.logprobs), expected, atol=0.02)


def test_pickled_weights_are_refused(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").unlink()
    torch.save({}, model / "pytorch_model.bin")
    code, result = load_hf(model, tmp_path / "job")
    assert code == 1
    assert "safetensors" in result["error"]


def test_pickles_beside_the_weights_are_neither_read_nor_taken_over(model: Path, tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    for name in (
        "pytorch_model.bin",
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "training_args.bin",
        "vocab.pkl",
    ):
        (model / name).write_bytes(f"cos\nmkdir\n(S'{harm}'\ntR.".encode())
    code, _ = load_hf(model, tmp_path / "job")
    assert code == 0 and not harm.exists()
    files = set(verify(tmp_path / "job" / "output").files)
    assert {Path(name).suffix for name in files} <= {".json", ".jinja", ".safetensors"}


def test_a_weight_that_is_missing_is_an_error_that_names_it(model: Path, tmp_path: Path) -> None:
    """Transformers would initialize the weight randomly, with a warning."""
    weights = load_file(model / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    code, result = load_hf(model, tmp_path / "job")
    assert code == 1
    assert "model.layers.1.mlp.up_proj.weight" in result["error"]


def test_weights_that_were_cut_are_an_error(model: Path, tmp_path: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    code, result = load_hf(model, tmp_path / "job")
    assert code == 1
    assert result["kind"] == "StageError" and str(model) in result["error"]


def test_a_config_of_no_known_model_is_refused(model: Path, tmp_path: Path) -> None:
    (model / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))
    code, result = load_hf(model, tmp_path / "job")
    assert code == 1
    assert "no-such-model" in result["error"]


@pytest.mark.parametrize(("field", "value"), [("num_attention_heads", 0), ("hidden_size", "32"), ("head_dim", 7)])
def test_a_config_that_transformers_cannot_load_is_refused(
    model: Path, tmp_path: Path, field: str, value: object
) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {field: value}))
    code, result = load_hf(model, tmp_path / "job")
    assert code == 1
    assert result["kind"] == "StageError" and "model" in result["error"]


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused(model: Path, tmp_path: Path) -> None:
    small = AutoModelForCausalLM.from_pretrained(model)
    small.resize_token_embeddings(100)
    small.save_pretrained(model)
    code, result = load_hf(model, tmp_path / "job")
    assert code == 1
    assert "vocab_size 100 is smaller than its tokenizer's 260" in result["error"]


def test_a_model_without_positions_is_refused(model: Path, tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=8, state_size=2, num_hidden_layers=1, eos_token_id=0)
    MambaForCausalLM(config).save_pretrained(model)
    code, result = load_hf(model, tmp_path / "job")
    assert code == 1
    assert "config.json has no max_position_embeddings" in result["error"]


@pytest.mark.parametrize("kind", ["LlamaTokenizerFast", "Qwen2Tokenizer", "GemmaTokenizer"])
def test_the_tokenizer_stays_what_it_is(model: Path, kind: str, tmp_path: Path) -> None:
    """The configured class is not applied: Llama's would lose spaces, Qwen2's would add a token, and Gemma's would
    refuse the vocabulary."""
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": kind}))
    code, result = load_hf(model, tmp_path / "job")
    assert code == 0, result
    made = tmp_path / "job" / "output"
    assert (made / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    text = "def  f(x):\n    return x"
    loaded = AutoTokenizer.from_pretrained(made)
    assert loaded.decode(loaded(text)["input_ids"]) == text
    assert max(loaded.get_vocab().values()) < VOCABULARY


def test_of_several_chat_templates_the_model_keeps_those_that_are_used(model: Path, tmp_path: Path) -> None:
    (model / "additional_chat_templates").mkdir()
    for name in ("rag", "tool_use"):
        (model / "additional_chat_templates" / f"{name}.jinja").write_text(name)
    spec = StartFromSpec(model=str(model))
    (problem,) = spec.missing()
    assert (problem.path, problem.value) == ("chat_template", None)
    assert "chat templates rag, tool_use, and none is called default" in problem.allowed

    chosen = spec.model_copy(update={"chat_template": "rag"})
    assert chosen.missing() == []
    write_job(tmp_path / "job", "load_hf", "hf_model", chosen.model_dump(mode="json"))
    work(open_job(tmp_path / "job"))
    assert (tmp_path / "job" / "output" / "chat_template.jinja").read_text() == "rag"

    (model / "chat_template.jinja").write_text("default")
    assert spec.missing() == [] and spec.identity() != chosen.identity()
    assert load_hf(model, tmp_path / "again")[0] == 0
    templates = AutoTokenizer.from_pretrained(tmp_path / "again" / "output").chat_template
    assert templates == {"default": "default", "rag": "rag", "tool_use": "tool_use"}


def test_additional_chat_templates_are_part_of_the_model_s_state(model: Path) -> None:
    (model / "additional_chat_templates").mkdir()
    path = model / "additional_chat_templates" / "tool_use.jinja"
    path.write_text("one")
    spec = LoadHFSpec(model=str(model))
    before = spec.pinned().state
    path.write_text("other")
    assert spec.pinned().state != before
    assert "additional_chat_templates/tool_use.jinja" in {file.name for file in spec.local_files()}
