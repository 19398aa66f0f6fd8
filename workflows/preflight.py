"""What is checked before any compute: that the stages fit together, that their inputs are there, that
the hardware can do what is asked, and that there is room for it in memory and for what it writes on disk."""

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator

from infra.home import baton_home
from infra.placement.storage import is_bucket, storage_of
from infra.progress import say
from infra.tracking.redact import HIDDEN, redact_text
from tasks.convert.spec import unexportable
from tasks.dpo.spec import DPOSpec
from tasks.evaluate.spec import EvaluateSpec
from tasks.evaluate.task_files import is_file_name
from tasks.evaluate.task_names import unknown
from tasks.grpo.spec import GRPOSpec
from tasks.posttrain.spec import PostTrainSpec
from tasks.pretrain.accelerators import BY_NAME, accelerator
from tasks.pretrain.fit import USABLE, Place, fitting, place_of
from tasks.pretrain.layout import Layout
from tasks.pretrain.memory import GB, GPU, estimate
from tasks.pretrain.spec import PretrainSpec
from tasks.serve.spec import ServeSpec
from tasks.spec import NotSeen, Problem, Spec, StageSpec
from workflows.costs import over_budget
from workflows.first_rows import problems_of_rows
from workflows.given import (
    Given,
    devices_of,
    is_for_a_cluster,
    model_of,
    placements_of,
    positions_of,
    runs_on_a_cluster,
    tuning_devices,
    vocabulary_of,
)
from workflows.needs import need
from workflows.pod_defaults import too_small
from workflows.post_training import names_problems
from workflows.rewards_tried import problems_of_rewards

# stage: the stage it needs, and what that one hands to it
NEEDS = {
    "tokenizer": ("corpus", "the text to train it on, and to tokenize"),
    "shards": ("tokenizer", "the tokenizer that makes the shards"),
    "pretrain": ("shards", "tokenized text"),
    "convert": ("pretrain", "a checkpoint to convert"),
    "init_from": ("pretrain", "what starts from that model"),
}
# vllm 0.27, v1/attention/backends/cpu_attn.py and flash_attn.py: what both have
VLLM_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)
NEED_A_MODEL = ("evaluate", "post_training", "serve", "publish")
WITH_VLLM = ("evaluate", "dpo", "grpo", "serve")
SAMPLED = (EvaluateSpec, PostTrainSpec, ServeSpec)  # they say how long their sequences get
# pretrain.model's fields in a config.json
IN_CONFIG = {
    "family": "model_type", "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads", "head_dim": "head_dim", "vocab_size": "vocab_size",
    "tied_embeddings": "tie_word_embeddings",
}  # fmt: skip
WITH_CACHE = 1.1  # of the weights' size: vLLM's activations, and a KV cache that is worth having
WITH_START_FROM_OFF = ("tokenizer", "shards", "init_from", "pretrain", "convert")


def problems_of(given: Given) -> list[Problem]:
    """Every problem of the recipe as a whole, and of each stage across its fields."""
    return [problem for check in (*FOR_A_DAG, *CHECKS) for problem in check(given)]


def has_dag(given: Given) -> bool:
    """Whether the stages are known, and what each takes."""
    return not any(check(given) for check in FOR_A_DAG)


def _across_fields(given: Given) -> list[Problem]:
    """Of each stage by itself."""
    return [problem.under(name) for name, spec in _parts(given) for problem in spec.problems()]


def _parts(given: Given) -> Iterator[tuple[str, Spec]]:
    """Every section, and every item of those that are lists or dictionaries, with its path."""
    for name, section in given.specs.items():
        if isinstance(section, Spec):
            yield name, section
        elif isinstance(section, dict | list):
            items = section.items() if isinstance(section, dict) else enumerate(section)
            yield from ((f"{name}.{key}", item) for key, item in items)


def order(given: Given) -> list[Problem]:
    """Each stage's input comes from a stage that is on."""
    found = []
    if "start_from" in given:
        found += [
            Problem(stage, "on", "must be left out with start_from, which brings a model and its tokenizer")
            for stage in WITH_START_FROM_OFF
            if stage in given
        ]
    else:
        found += [
            Problem(stage, "on", f"needs {before} ({what}); add `{before}:` or leave `{stage}:` out")
            for stage, (before, what) in NEEDS.items()
            if stage in given and before not in given
        ]
        found += [
            Problem(stage, "on", "needs a model: add `convert:` (with pretrain) or `start_from:`, or leave it out")
            for stage in NEED_A_MODEL
            if stage in given and "convert" not in given
        ]
    return found


def inputs(given: Given) -> list[Problem]:
    """Files and folders that the recipe names are there."""
    found = []
    for name in ("corpus", "tokenizer", "start_from", "init_from"):
        if name in given.specs:
            found += [problem.under(name) for problem in given.specs[name].missing()]
    for index, corpus in enumerate(given.specs.get("more_corpora", ())):
        found += [problem.under(f"more_corpora.{index}") for problem in corpus.missing()]
    for name, rows in given.specs.get("data", {}).items():
        found += [problem.under(f"data.{name}") for problem in rows.missing()]
    if not is_for_a_cluster():
        return found
    for problem in found:
        if isinstance(problem, NotSeen):  # pods have credentials of their own
            say(f"{problem}. The run's first pod looks at it again")
    return [problem for problem in found if not isinstance(problem, NotSeen)]


def _named_rows(given: Given) -> list[Problem]:
    """Each set of rows that a stage names is there, and has rows for it."""
    sets = given.specs.get("data", {})
    named = {f"{step.path}.data": step.spec.data for step in given.tunings()}
    if "evaluate" in given:
        evaluators = given.specs["evaluate"].evaluators()
        named |= {f"evaluate.{name}.data": each.data for name, each in evaluators.items() if each.data is not None}
    allowed = f"one of {', '.join(sets)}" if sets else "a set of rows: add it under `data:`"
    found = [Problem(path, name, allowed) for path, name in named.items() if name not in sets]
    for step in given.tunings():
        if (rows := sets.get(step.spec.data)) and rows.held_out == 1 and not rows.documents:
            found.append(Problem(f"data.{step.spec.data}.held_out", 1.0, f"less than 1: {step.path} trains on the set"))
    return found


def _data_sets(given: Given) -> list[Problem]:
    """Somebody reads the additional corpora, and the weights are as many as the data sets."""
    more = len(given.specs.get("more_corpora", ()))
    if more and "pretrain" not in given:
        allowed = "are for pretraining only: add `pretrain:` or leave them out"
        return [Problem("more_corpora", f"{more} corpora", allowed)]
    weights = given.specs["pretrain"].data_weights if "pretrain" in given.specs else None
    if weights is None or len(weights) == 1 + more:
        return []
    return [Problem("pretrain.data_weights", weights, f"one for the corpus and one for each of {more} more_corpora")]


def _vocabulary(given: Given) -> list[Problem]:
    """The embedding has a row for every token."""
    if not {"tokenizer", "pretrain"} <= given.specs.keys():
        return []
    rows, tokens = given.specs["pretrain"].model.vocab_size, given.specs["tokenizer"].size()
    if rows is None or tokens is None or rows >= tokens:
        return []
    return [Problem("pretrain.model.vocab_size", rows, f"at least the tokenizer's vocabulary ({tokens})")]


def _positions(given: Given) -> list[Problem]:
    """No stage uses longer sequences than the model has positions."""
    known = positions_of(given)
    if known is None:
        return []
    (positions, where), found = known, []
    for name, spec in given.stages().items():
        for length, value in spec.sequence_lengths().items() if isinstance(spec, SAMPLED) else ():
            if value > positions:
                found.append(Problem(f"{name}.{length}", value, f"at most {where} ({positions})"))
    return found


def _post_training(given: Given) -> list[Problem]:
    """The models' names, and which one each stage starts from; there is something that `seeds` repeats."""
    tunings, seeds = given.specs.get("post_training", []), given.specs.get("seeds", 1)
    if seeds > 1 and not tunings:
        return [Problem("seeds", seeds, "1, or add `post_training:`, which is what is repeated")]
    return names_problems(tunings)


def _text(given: Given) -> list[Problem]:
    """Who reads the corpus's documents has one."""
    if "corpus" in given.specs:
        return []
    readers = [f"data.{name}.documents" for name, rows in given.specs.get("data", {}).items() if rows.documents]
    if "evaluate" in given and given.specs["evaluate"].bits_per_byte:
        readers.append("evaluate.bits_per_byte")
    return [
        Problem(path, "on", "needs corpus (the text that it reads); add `corpus:` or leave it out") for path in readers
    ]


def _best(given: Given) -> list[Problem]:
    """The metric by which the published model is chosen is measured."""
    best = given.specs["publish"].best if "publish" in given else None
    if best is None:
        return []
    spec = given.specs.get("evaluate")
    names = spec.metrics() if spec else []
    of_lm_eval = [name for name, each in spec.evaluators().items() if each.lm_eval] if spec else []
    if best in names or best.partition(".")[0] in of_lm_eval:
        return []
    known = [*names, *(f"{name}.<task>.<metric>" for name in of_lm_eval)]
    allowed = f"one of {', '.join(known)}" if known else "null, or add `evaluate:`, which measures it"
    return [Problem("publish.best", best, allowed)]


def _lm_eval_tasks(given: Given) -> list[Problem]:
    """Those that are named are lm-eval's, if it is installed where they run."""
    spec: EvaluateSpec | None = given.specs.get("evaluate")
    if spec is None or spec.placement or runs_on_a_cluster():
        return []
    named = {
        f"evaluate.{name}.lm_eval.{number}": task
        for name, each in spec.evaluators().items()
        for number, task in enumerate(each.lm_eval)
        if not is_file_name(task)
    }
    wrong = unknown(named.values()) if named else {}
    found = []
    for path, task in named.items():
        if task in wrong:
            like = f"; did you mean {' or '.join(wrong[task])}?" if wrong[task] else ""
            found.append(Problem(path, task, f"a task of lm-eval (`lm_eval ls tasks`), or a YAML file{like}"))
    return found


def _head_size(given: Given) -> list[Problem]:
    """vLLM has attention kernels for the model's heads."""
    with_vllm = [path for path in given.stages() if path.rpartition(".")[2] in WITH_VLLM]
    if "pretrain" not in given.specs or not with_vllm:
        return []
    size = given.specs["pretrain"].model.head_dim
    if size in VLLM_HEAD_SIZES:
        return []
    allowed = f"one of {', '.join(map(str, VLLM_HEAD_SIZES))}: vLLM, which {', '.join(with_vllm)} use, has no other"
    return [Problem("pretrain.model.head_dim", size, allowed)]


def _convertible(given: Given) -> list[Problem]:
    """Hugging Face's model of the family can say all that is trained."""
    if "convert" not in given or "pretrain" not in given.specs:
        return []
    return [problem.under("pretrain.model") for problem in unexportable(given.specs["pretrain"].model)]


def _same_model(given: Given) -> list[Problem]:
    """Pretraining goes on with the model that it starts from."""
    if not {"pretrain", "init_from"} <= given.specs.keys():
        return []
    model, config = given.specs["pretrain"].model, given.specs["init_from"].config() or {}
    return [
        Problem(f"pretrain.model.{ours}", getattr(model, ours), f"{config[theirs]}, as init_from.model's {theirs} is")
        for ours, theirs in IN_CONFIG.items()
        if config.get(theirs) is not None and getattr(model, ours) != config[theirs]
    ]


def _hardware(given: Given) -> list[Problem]:
    """The device that a layout is meant for is known; it, or this machine, can do what is asked."""
    spec: PretrainSpec | None = given.specs.get("pretrain")
    if spec is None:
        return []
    layout, gpus = spec.layout, given.machine.gpus
    if layout.device and layout.device not in BY_NAME:
        return [Problem("pretrain.layout.device", layout.device, f"one of {', '.join(BY_NAME)}")]
    found = []
    if gpus and devices_of(spec) == [None] and layout.processes > len(gpus):
        allowed = f"at most the GPUs of this machine ({len(gpus)}), one for each process; layout.device names another"
        found.append(Problem("pretrain.layout.processes", layout.processes, allowed))
    if spec.precision == "fp8":
        found += [problem for device in devices_of(spec) for problem in _fp8(device, gpus)]
    return found


def _fp8(device: str | None, gpus: tuple[str, ...]) -> list[Problem]:
    """It takes tensor cores for it, and Transformer Engine where the run is made."""
    if device is None and not gpus:
        why = "needs a GPU of NVIDIA's Hopper generation or newer, and this machine has none"
    elif (chip := BY_NAME.get(device) if device else accelerator(gpus[0])) and not chip.peak("fp8"):
        why = f"{chip.name} has no fp8 arithmetic: Hopper (H100, H200) and newer have"
    elif not device and importlib.util.find_spec("transformer_engine") is None:
        why = "needs Transformer Engine, which is not installed here (`pip install transformer-engine[pytorch]`)"
    else:
        return []
    return [Problem("pretrain.precision", "fp8", f"{why}; bf16 runs everywhere")]


def _layout(given: Given) -> list[Problem]:
    """The layout can share out the tokenizer's vocabulary, and a process's tensors fit wherever it may run."""
    spec: PretrainSpec | None = given.specs.get("pretrain")
    if spec is None or any(not problem.path.startswith("optimizer") for problem in spec.problems()):
        return []  # these have their own words
    vocabulary = vocabulary_of(given)
    if vocabulary is None:
        return []
    if wrong := spec.layout_problems(vocabulary):
        return [problem.under("pretrain.layout") for problem in wrong]
    found = []
    for device in devices_of(spec):
        place = place_of(spec.layout.model_copy(update={"device": device}), given.machine)
        if place is None or place.has_room_for(needed := estimate(spec, vocabulary, place.kernels)):
            continue
        allowed = (
            f"needs {needed.total / GB:.3g} GB on each {place.name} ({place.capacity / GB:.3g} GB): {needed.words()}; "
            + _instead(spec, vocabulary, place)
        )
        found.append(Problem("pretrain.layout", spec.layout.name(), allowed))
    return found


def _tuning_room(given: Given) -> list[Problem]:
    """A post-training stage fits wherever it may run, as far as that is known: it is one process."""
    found = []
    for step in given.tunings():
        if runs_on_a_cluster() and not step.spec.placement:
            continue
        for device in tuning_devices(given, step.spec):
            place = place_of(Layout(device=device), given.machine)
            needed = need(given, step.spec, place.kernels, place.capacity) if place else None
            if place is None or needed is None or place.has_room_for(needed.memory):
                continue
            allowed = (
                f"needs {needed.memory.total / GB:.3g} GB in one process, on {place.name} "
                f"({place.capacity / GB:.3g} GB): {needed.memory.words()}; {_smaller(given, step.spec, place)}"
            )
            found.append(Problem(step.path, f"{needed.parameters / 1e9:.3g} B parameters", allowed))
    return found


def _smaller(given: Given, spec: PostTrainSpec, place: Place) -> str:
    """What fits in place of it: smaller micro batches there, or the smallest accelerator with room for it."""
    for size in range(spec.micro_batch_size - 1, 0, -1):
        if spec.batch_size % size == 0:
            less = need(given, spec.model_copy(update={"micro_batch_size": size}), place.kernels, place.capacity)
            if less and place.has_room_for(less.memory):
                return f"use micro_batch_size: {size}, which needs {less.memory.total / GB:.3g} GB"
    for chip in sorted(BY_NAME.values(), key=lambda chip: chip.memory_gb):
        larger = place_of(Layout(device=chip.name), given.machine)
        needed = need(given, spec, capacity=larger.capacity) if larger else None
        if larger and needed and larger.has_room_for(needed.memory):
            return f"tune a smaller model, or give the stage a `placement` on {chip.name} ({chip.memory_gb:g} GB)"
    return "tune a smaller model: no accelerator has so much"


def _vllm_room(given: Given) -> list[Problem]:
    """vLLM's share of the GPU that a stage is meant for holds the model's weights, and some KV cache."""
    known = model_of(given)
    if known is None or runs_on_a_cluster():
        return []
    weights, found = known[0].parameters(known[1]) * MODEL_BYTES, []
    shares: dict[str, tuple[StageSpec, float]] = {}
    if "evaluate" in given:
        shares["evaluate"] = (given.specs["evaluate"], given.specs["evaluate"].gpu_memory_share)
    for step in given.tunings():
        if isinstance(step.spec, GRPOSpec):
            shares[step.path] = (step.spec, step.spec.gpu_memory_share)
        elif isinstance(step.spec, DPOSpec) and step.spec.pairs:
            shares[f"{step.path}.pairs"] = (step.spec, step.spec.pairs.gpu_memory_share)
    for path, (spec, share) in shares.items():
        for device in tuning_devices(given, spec):
            place = place_of(Layout(device=device), given.machine)
            if place is None or place.kernels != GPU or weights * WITH_CACHE <= share * place.capacity:
                continue
            least = weights * WITH_CACHE / place.capacity
            instead = f"at least {least:.2g}" if least < USABLE else "a smaller model, or a larger accelerator"
            allowed = f"{instead}: {weights / GB:.3g} GB of weights in bf16 and a KV cache, on {place.name}"
            found.append(Problem(f"{path}.gpu_memory_share", share, f"{allowed} ({place.capacity / GB:.3g} GB)"))
    return found


def _instead(spec: PretrainSpec, vocabulary: int, place: Place) -> str:
    found = fitting(spec, vocabulary, place)
    if found is None:
        return "no layout of it fits: use more or larger devices, shorter sequences or a smaller model"
    less = estimate(spec.model_copy(update={"layout": found}), vocabulary, place.kernels)
    return f"use {found.words()}, which needs {less.total / GB:.3g} GB"


def _room(given: Given) -> list[Problem]:
    """The disk has room for what the run writes, if it is this machine's."""
    spec: PretrainSpec | None = given.specs.get("pretrain")
    if spec is None or spec.layout.device or spec.placement or runs_on_a_cluster():
        return []
    needed = estimated_bytes(given, spec.model.parameters(vocabulary_of(given) or 0))
    free = shutil.disk_usage(baton_home()).free
    if needed <= free:
        return []
    allowed = (
        f"about {needed / 1e9:,.1f} GB will be written and {free / 1e9:,.1f} GB are free in {baton_home()}: "
        "lower checkpoints.keep_last, make room, or set BATON_HOME to a larger disk"
    )
    return [Problem("pretrain.checkpoints.keep_last", spec.checkpoints.keep_last, allowed)]


def _placements(given: Given) -> list[Problem]:
    """A placed stage has as many machines as it is spread over, with an accelerator for each process, and they
    share their files."""
    found, specs = [], given.stages()
    for name, placement in placements_of(given).items():
        spec = specs[name]
        layout = spec.layout if isinstance(spec, PretrainSpec) else Layout()
        if placement.nodes != layout.nodes:
            what = "as layout.nodes is" if isinstance(spec, PretrainSpec) else "this stage runs on one"
            found.append(Problem(f"{name}.placement.nodes", placement.nodes, f"{layout.nodes}: {what}"))
        for number, each in enumerate(placement.accelerators if isinstance(spec, PretrainSpec) else ()):
            chip, _, count = each.partition(":")
            if float(count or 1) != layout.processes:
                allowed = f"{chip}:{layout.processes}: one for each of layout.processes"
                found.append(Problem(f"{name}.placement.accelerators.{number}", each, allowed))
        if placement.setup and redact_text(placement.setup) != placement.setup:
            allowed = (
                "lines without secrets: a recipe is stored as it is. Set an environment variable, name it in "
                f"{name}.placement.secrets: [NAME], and write $NAME here"
            )
            found.append(Problem(f"{name}.placement.setup", HIDDEN, allowed))
        for number, secret in enumerate(placement.secrets if _starts_jobs() else ()):
            if not os.environ.get(secret):
                allowed = f"an environment variable that is set here: export {secret}=…"
                found.append(Problem(f"{name}.placement.secrets.{number}", secret, allowed))
        storage = storage_of(placement.storage)
        if layout.nodes > 1 and is_bucket(storage):
            allowed = "a folder that the machines share: they write one checkpoint together"
            found.append(Problem(f"{name}.placement.storage", storage, allowed))
    return found


def _starts_jobs() -> bool:
    """Whether SkyPilot's jobs are started here, and not by a cluster's connector."""
    return importlib.util.find_spec("sky") is not None and not runs_on_a_cluster()


# bytes for each weight: bf16 weights, fp32 master weights, and Adam's two moments; a model for exchange in bf16
CHECKPOINT_BYTES = 2 + 4 + 4 + 4
MODEL_BYTES = 2
TUNING_BYTES = 4 + 4 + 4  # TRL's checkpoints: fp32 weights and Adam's two moments


def estimated_bytes(given: Given, parameters: int) -> int:
    """What the run will write, roughly: checkpoints (one more while saving), models, shards."""
    spec = given.specs["pretrain"]
    kept = (spec.checkpoints.keep_last + 1) * CHECKPOINT_BYTES
    tuned = len(given.tunings()) * given.specs.get("seeds", 1)
    models = MODEL_BYTES * (1 + tuned + ("publish" in given)) + 2 * TUNING_BYTES * bool(tuned)
    return int(parameters * (kept + models))


FOR_A_DAG: list[Callable[[Given], list[Problem]]] = [_across_fields, order, inputs, _named_rows, _post_training]
CHECKS: list[Callable[[Given], list[Problem]]] = [
    problems_of_rows,
    problems_of_rewards,
    _text,
    _best,
    _data_sets,
    _vocabulary,
    _positions,
    _lm_eval_tasks,
    _head_size,
    _convertible,
    _same_model,
    _hardware,
    _layout,
    _tuning_room,
    _vllm_room,
    _room,
    _placements,
    too_small,
    over_budget,
]
