"""A checkpoint is the same model regardless of the layout that saved it: its chunks are assembled into the same
tensors."""

import json
import pickle
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import MetadataIndex

from baton.tasks.convert.audit import audit
from baton.tasks.convert.export_model import ExportOptions, export_model
from baton.tasks.convert.import_model import open_hugging_face
from baton.tasks.convert.megatron_model import CHECKPOINT, open_megatron
from baton.tasks.models.model_spec import ExpertsSpec, ModelSpec
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.model import build_model, transformer_config
from baton.tasks.pretrain.train_step import Training
from tests.convert.load_under import known, save, save_known, spec_of
from tests.convert.test_round_trip import assert_same, quietly, tensors, to_hugging_face, to_megatron
from tests.pretrain.alone import alone
from tests.pretrain.ranks import Ranks

# isort: split
from megatron.core import dist_checkpointing

VOCABULARY = 102
SHAPE = ModelSpec(
    family="llama", layers=4, hidden=40, heads=4, kv_heads=2, head_dim=16, ffn_hidden=56, max_positions=64
)
MODELS = {
    "llama": SHAPE.model_copy(update={"tied_embeddings": False}),
    "qwen2": SHAPE.model_copy(update={"family": "qwen2"}),
    "qwen3_moe": SHAPE.model_copy(
        update={"family": "qwen3_moe", "experts": ExpertsSpec(count=6, top_k=2, ffn_hidden=24)}
    ),
}
ONE = Layout(micro_batch=2)
TWO = Layout(micro_batch=2, processes=2)
TP2 = TWO.model_copy(update={"tensor": 2, "sequence_parallel": True})
PP2X2 = TWO.model_copy(update={"pipeline": 2, "virtual_pipeline": 2})
DP2 = TWO.model_copy(update={"distributed_optimizer": True})
EP2 = TWO.model_copy(update={"expert": 2})
CASES = [("llama", TP2), ("qwen2", PP2X2), ("llama", DP2), ("qwen3_moe", EP2)]

Saved = Callable[[str, Layout], Path]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Checkpoints of known weights by model and layout, in the format of the output of `pretrain`."""
    root = tmp_path_factory.mktemp("saved")

    @cache
    def make(model: str, layout: Layout) -> Path:
        folder = root / f"{model}-{layout.name()}"
        spec = spec_of(MODELS[model], layout=layout)
        folder.mkdir()
        if layout.world == 1:
            with alone():
                save(Training(spec, VOCABULARY), folder / "checkpoints")
        else:
            Ranks(
                layout.world, folder, save_known, spec.model_dump(mode="json"), VOCABULARY, folder / "checkpoints"
            ).succeed()
        (folder / "checkpoints" / "step-00000000").rename(folder / CHECKPOINT)
        describe(folder, model)
        return folder

    return make


def describe(folder: Path, model: str) -> None:
    about = {"model": MODELS[model].model_dump(mode="json"), "vocab_size": VOCABULARY}
    (folder / "model.json").write_text(json.dumps(about))


def expected(folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the expected Hugging Face tensors, with rows of the known weights."""
    found = {}
    for weight in open_megatron(folder).weights:
        whole = known((weight.rule, weight.layer, weight.expert), weight.shape).to(dtype)
        for number, (name, _) in enumerate(weight.parts):
            end, rows = 0, []
            for segment in weight.segments:
                start, end = end, end + segment.stop - segment.start
                if segment.part == number:
                    rows.append(whole[start:end])
            found[name] = torch.cat(rows)
    return found


@pytest.mark.parametrize("model", MODELS)
def test_one_process(model: str, saved: Saved, tmp_path: Path) -> None:
    folder = saved(model, ONE)
    assert_same(tensors(to_hugging_face(folder, tmp_path / "out")), expected(folder, torch.bfloat16))


@pytest.mark.long
@pytest.mark.parametrize(("model", "layout"), CASES, ids=[f"{model}-{layout.name()}" for model, layout in CASES])
def test_a_layout_exports_the_same_bytes_as_one_process(
    model: str, layout: Layout, saved: Saved, tmp_path: Path
) -> None:
    one = to_hugging_face(saved(model, ONE), tmp_path / "one")
    other = to_hugging_face(saved(model, layout), tmp_path / "other")
    for name in ("model.safetensors", "config.json", "record/conversion.json"):
        assert (other / name).read_bytes() == (one / name).read_bytes(), name


def test_a_layout_s_chunks_are_really_parts(saved: Saved) -> None:
    """Make sure that the tests above do not pass vacuously."""
    for model, layout, key, parts in [
        ("llama", TP2, "decoder.layers.self_attention.linear_qkv.weight", 2 * 4),
        ("llama", TP2, "decoder.layers.mlp.linear_fc1.weight", 4 * 4),
        ("llama", TP2, "embedding.word_embeddings.weight", 2),
        ("qwen3_moe", EP2, "decoder.layers.mlp.experts.experts.linear_fc2.weight", 4 * 6),
    ]:
        assert len(open_megatron(saved(model, layout)).checkpoint.tensors[key].chunks) == parts


def test_it_is_what_megatron_reads(saved: Saved, tmp_path: Path) -> None:
    """Convert Megatron's checkpoint to Hugging Face and back: Megatron loads the same weights from both."""
    first = saved("llama", TP2)
    second = to_megatron(to_hugging_face(first, tmp_path / "out"), tmp_path / "megatron")
    with alone():
        states = []
        for folder in (first, second):
            model = build_model(MODELS["llama"], transformer_config(MODELS["llama"], "bf16"), VOCABULARY)
            loaded = dist_checkpointing.load({"model": model.sharded_state_dict()}, str(folder / CHECKPOINT))
            states.append({name: each for name, each in loaded["model"].items() if isinstance(each, Tensor)})
    assert_same(states[1], states[0])


def test_an_embedding_padded_for_its_layout_loses_its_padding(saved: Saved, tmp_path: Path) -> None:
    folder = saved("llama", TP2)
    (tmp_path / "padded").mkdir()
    (tmp_path / "padded" / CHECKPOINT).symlink_to(folder / CHECKPOINT)
    about = json.loads((folder / "model.json").read_text()) | {"vocab_size": 97}
    (tmp_path / "padded" / "model.json").write_text(json.dumps(about))
    whole = tensors(to_hugging_face(folder, tmp_path / "whole"))
    found = tensors(to_hugging_face(tmp_path / "padded", tmp_path / "out"))
    assert found.keys() == whole.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, whole[name][: len(tensor)])
    assert len(found["model.embed_tokens.weight"]) == len(found["lm_head.weight"]) == 97


def test_layers_that_are_not_stacked(saved: Saved, tmp_path: Path) -> None:
    """Names like decoder.layers.0. and decoder.layers.1. are an option of Megatron, and required if layers differ."""
    one = to_hugging_face(saved("qwen3_moe", ONE), tmp_path / "one")
    folder = tmp_path / "saved"
    (folder / CHECKPOINT).mkdir(parents=True)
    describe(folder, "qwen3_moe")
    with alone():
        spec = spec_of(MODELS["qwen3_moe"], layout=ONE)
        training = Training(spec, VOCABULARY)
        save(training, tmp_path / "stacked")
        state = training.chunks[0].sharded_state_dict(metadata={"non_homogeneous_layers": True})
        dist_checkpointing.save({"model": state}, str(folder / CHECKPOINT))
    assert_same(tensors(to_hugging_face(folder, tmp_path / "other")), tensors(one))


# Checkpoints from elsewhere: a config.json is given, and names may be those of Megatron's own layers


@pytest.fixture
def theirs(saved: Saved, tmp_path: Path) -> Path:
    """Return the checkpoint as a Hugging Face model."""
    return to_hugging_face(saved("qwen3_moe", ONE), tmp_path / "theirs")


@pytest.mark.parametrize("iteration", ["100", "release"])
def test_a_folder_of_megatron_lm(iteration: str, theirs: Path, saved: Saved, tmp_path: Path) -> None:
    place = tmp_path / "saves" / ("iter_0000100" if iteration == "100" else iteration)
    place.parent.mkdir()
    shutil.copytree(saved("qwen3_moe", ONE) / CHECKPOINT, place)
    (place.parent / "latest_checkpointed_iteration.txt").write_text(iteration)
    assert_same(export_with(place.parent, theirs, tmp_path), tensors(theirs))


@pytest.mark.parametrize("given", ["folder", "file"])
def test_a_config_may_be_given_as_a_folder_or_a_file(given: str, theirs: Path, saved: Saved, tmp_path: Path) -> None:
    place = saved("qwen3_moe", ONE) / CHECKPOINT
    config = theirs if given == "folder" else theirs / "config.json"
    assert_same(export_with(place, config, tmp_path), tensors(theirs))
    assert open_hugging_face(tmp_path / "out").architecture == open_hugging_face(theirs).architecture


def test_an_export_with_a_config_that_says_no_dtype_passes_its_audit(
    theirs: Path, saved: Saved, tmp_path: Path
) -> None:
    place, config = saved("qwen3_moe", ONE) / CHECKPOINT, theirs / "config.json"
    fields = json.loads(config.read_text())
    config.write_text(json.dumps({name: value for name, value in fields.items() if "dtype" not in name}))
    export_with(place, theirs, tmp_path)
    ours = open_megatron(place, theirs)
    tokens = torch.arange(64).reshape(1, -1) % ours.architecture.vocab
    found = audit(ours, open_hugging_face(tmp_path / "out"), tokens, 1e-4, lambda *_: None)
    assert found.problems() == []


def test_megatron_s_own_layers_have_other_names_for_norms(saved: Saved, tmp_path: Path) -> None:
    place = Path(shutil.copytree(saved("llama", TP2) / CHECKPOINT, tmp_path / "saved"))
    theirs = to_hugging_face(saved("llama", TP2), tmp_path / "llama")
    metadata = pickle.loads((place / ".metadata").read_bytes())
    for old, new in [
        ("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"),
        ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"),
    ]:
        name = f"decoder.layers.{new}"
        about = metadata.state_dict_metadata[name] = metadata.state_dict_metadata.pop(f"decoder.layers.{old}")
        for chunk in about.chunks:
            index = MetadataIndex(f"decoder.layers.{old}", chunk.offsets)
            metadata.storage_data[MetadataIndex(name, chunk.offsets)] = metadata.storage_data.pop(index)
    (place / ".metadata").write_bytes(pickle.dumps(metadata))
    assert_same(export_with(place, theirs, tmp_path), tensors(theirs))


def export_with(folder: Path, config: Path, root: Path) -> dict[str, Tensor]:
    export_model(open_megatron(folder, config), root / "out", ExportOptions(), None, quietly)
    return tensors(root / "out")
