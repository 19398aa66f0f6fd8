"""Mutated configs of every family through import, export and audit.

A config is either refused, in one line and before anything is written, or converted: then every file comes back byte
for byte, and transformers computes the same from the model as Megatron does. The long form runs BATON_FUZZ examples.
"""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from baton.tasks.convert.audit import Audit, audit
from baton.tasks.convert.command import main
from baton.tasks.convert.families import family_of, read
from baton.tasks.convert.import_model import open_hugging_face
from baton.tasks.convert.mapping import weights
from baton.tasks.convert.megatron_model import full_config, open_megatron
from baton.tasks.models.errors import ConversionError
from tests.convert.models import FAMILIES, LINEAR, LLAMA3, YARN, text
from tests.convert.test_round_trip import assert_same, tensors

SHORT = 60
LARGEST = 2_000_000  # maximum number of parameters for which weights are created
BOUND = 1e-3

VALUES: list[Any] = [
    None, True, False, 0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 48, 72, 100, 144, -1, -7, 2**31, 2**63, 10**30, 10**400,
    0.0, 0.5, 1.0, 1.5, 2.0, 6.0, 72.0, -0.5, 1e-6, 1e-5, 1e6, 1e30, 1e308, float("nan"), float("inf"), float("-inf"),
    "", "72", "1e-6", "null", "full_attention", "silu", "swish", "gelu", "gelu_pytorch_tanh", "bfloat16", "\ud800", "é",
    [], [1], [None], ["full_attention"], ["sliding_attention"] * 3, ["full_attention"] * 3, ["full_attention"] * 4,
    ["chunked_attention"] * 3, {}, {"a": 1}, {"full_attention": None}, [[[]]],
]  # fmt: skip
SIMILAR = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96, 144]  # sizes that may result in another valid model
EXTRA = [
    "rope_scaling", "rope_theta", "rope_parameters", "rope_local_base_freq", "partial_rotary_factor", "head_dim",
    "layer_types", "sliding_window", "use_sliding_window", "max_window_layers", "sliding_window_pattern",
    "num_experts", "num_local_experts", "attention_bias", "mlp_bias", "quantization_config", "torch_dtype", "dtype",
    "hidden_act", "hidden_activation", "logit_scale", "auto_map", "is_encoder_decoder", "tie_word_embeddings",
    "attn_logit_softcapping", "query_pre_attn_scalar", "original_max_position_embeddings", "num_key_value_heads",
    "pretraining_tp", "use_bidirectional_attention", "id2label", "architectures", "pad_token_id", "model_type",
    "first_k_dense_replace", "mlp_only_layers", "decoder_sparse_step", "norm_topk_prob", "temperature",
]  # fmt: skip
ROPES: list[dict[str, Any]] = [{"rope_type": "default", "rope_theta": 10000.0}, LINEAR, LLAMA3, YARN]


def mutate(fields: dict[str, Any], chance: random.Random) -> None:
    """Make one change; some changes result in a valid config of another model."""
    names = list(fields) + chance.sample(EXTRA, 5)
    name = chance.choice(names)
    kind = chance.random()
    if kind < 0.12:
        fields.pop(name, None)
    elif kind < 0.24:
        sizes = [each for each, value in fields.items() if type(value) is int]
        fields[chance.choice(sizes)] = chance.choice(SIMILAR)
    elif kind < 0.30:
        layers = fields.get("num_hidden_layers")
        kinds = ["full_attention", "sliding_attention", *(["chunked_attention"] if chance.random() < 0.2 else [])]
        count = layers if type(layers) is int and 0 < layers < 9 and chance.random() < 0.8 else 2
        fields["layer_types"] = [chance.choice(kinds) for _ in range(count)]
    elif kind < 0.38:
        fields[chance.choice(["rope_parameters", "rope_scaling"])] = dict(chance.choice(ROPES))
    elif kind < 0.60 and isinstance(rope := fields.get("rope_parameters"), dict) and rope:
        rope = fields["rope_parameters"] = json.loads(json.dumps(rope))
        inner = chance.choice([rope, *(each for each in rope.values() if isinstance(each, dict))])
        key = chance.choice([*(inner or ["rope_type"]), *YARN, *LLAMA3, "truncate", "mscale_all_dim", "type", "new"])
        if chance.random() < 0.2:
            inner.pop(key, None)
        else:
            inner[key] = chance.choice([*VALUES, 0, 0.5, 4.0, 32, "yarn", "linear", "llama3", "default", "longrope"])
    else:
        fields[name] = chance.choice(VALUES)


def example(seed: int, folder: Path) -> str:
    """Write a config.json to `folder`, and return the name of the original model."""
    chance = random.Random(seed)
    name = chance.choice(list(FAMILIES))
    config = FAMILIES[name]()
    config.dtype = torch.float32
    fields = json.loads(config.to_json_string(use_diff=chance.random() < 0.5))
    fields["architectures"] = [family_of(config.to_dict()).architecture]
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        mutate(fields, chance)
    (folder / "config.json").write_text(json.dumps(fields, indent=2))
    return name


def make_weights(folder: Path, seed: int, name: str) -> None:
    """Create random weights that fit the config, or the original model if no weights can fit the config."""
    torch.manual_seed(seed)
    try:
        fields = full_config(folder)
        model = read(fields)
        expected = list(weights(family_of(fields).table, model))
        if sum(weight.elements for weight in expected) > LARGEST:
            raise ConversionError("too large")
    except ConversionError:
        fields = FAMILIES[name]().to_dict()
        expected = list(weights(family_of(fields).table, read(fields)))
    shapes = {part: shape for weight in expected for part, shape in weight.parts}
    around = {part: 0.0 if len(shape) > 1 or "gemma" in name else 1.0 for part, shape in shapes.items()}
    tensors = {
        part: around[part] + torch.randn(shape) * (0.3 if len(shape) == 1 else shape[-1] ** -0.5)
        for part, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def command(*words: object) -> tuple[int, str]:
    """Run a command, and return its exit code and output. Raises exceptions that would print a traceback."""
    found = CliRunner().invoke(main, [str(word) for word in words])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, found.output


def audited(checkpoint: Path, model: Path) -> Audit:
    ours = open_megatron(checkpoint)
    tokens = text(1) % ours.architecture.vocab
    return audit(ours, open_hugging_face(model), tokens, BOUND, lambda what, done, total: None)


def run(seed: int, root: Path) -> str:
    """Run one example, and return whether it was refused or converted. Raises AssertionError in all other cases."""
    model = root / "model"
    model.mkdir()
    name = example(seed, model)
    make_weights(model, seed, name)
    code, preflight = command("import", "--preflight", model, root / "ours")
    assert sorted(path.name for path in root.iterdir()) == ["model"]
    code_too, output = command("import", model, root / "ours")
    assert code == code_too, (preflight, output)
    if code:
        assert code == 1
        errors = [line for line in output.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, output
        assert sorted(path.name for path in root.iterdir()) == ["model"], output
        assert not (root / "ours").exists()
        return "refused"
    code, output = command("export", root / "ours", root / "back")
    assert code == 0, output
    assert (root / "back" / "config.json").read_bytes() == (model / "config.json").read_bytes()
    assert_same(tensors(root / "back"), tensors(model))
    assert (problems := audited(root / "ours", model).problems()) == [], problems
    return "carried"


def fuzz(seeds: range, root: Path) -> dict[str, int]:
    counts = {"refused": 0, "carried": 0}
    failures = []
    for seed in seeds:
        folder = root / str(seed)
        folder.mkdir()
        try:
            counts[run(seed, folder)] += 1
        except Exception as error:
            failures.append(f"seed {seed}: {type(error).__name__}: {' '.join(str(error).split())[:600]}")
            (folder / "model" / "model.safetensors").unlink(missing_ok=True)
            failures[-1] += "\n  " + " ".join((folder / "model" / "config.json").read_text().split())
        shutil.rmtree(folder)
    if failures:
        pytest.fail(f"{len(failures)} of {len(seeds)} ({counts}):\n" + "\n".join(failures), pytrace=False)
    return counts


@pytest.mark.long
def test_some_mutated_configs(tmp_path: Path) -> None:
    counts = fuzz(range(SHORT), tmp_path)
    assert min(counts.values()) >= SHORT // 10


@pytest.mark.fuzz
def test_many_mutated_configs(tmp_path: Path) -> None:
    """Run by `pytest -m fuzz tests/convert/test_fuzz_configs.py`."""
    count = int(os.environ.get("BATON_FUZZ", "1000"))
    counts = fuzz(range(SHORT, SHORT + count), tmp_path)
    print(f"{count} configs: {counts}")
