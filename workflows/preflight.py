"""Check a recipe before any compute: that its stages fit together, that their inputs exist, that the hardware can run
them, and that memory and disk have room."""

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from infra.paths import baton_home
from infra.placement.storage import StorageError, is_bucket, storage_of
from infra.pod import this_pod
from infra.progress import say
from infra.tracking.redact import HIDDEN, redact_text
from tasks.convert.spec import unexportable
from tasks.data.curate_spec import EVALUATE, against_evaluation
from tasks.data.spec import CorpusSpec, ShardsSpec
from tasks.evaluate.spec import EvaluateSpec
from tasks.grpo.spec import GRPOSpec
from tasks.posttrain.spec import PostTrainSpec
from tasks.pretrain.accelerators import BY_NAME, accelerator
from tasks.pretrain.fit import Place, fitting, place_of
from tasks.pretrain.memory import GB, estimate
from tasks.pretrain.spec import PretrainSpec
from tasks.serve.architectures import HEAD_SIZES
from tasks.serve.spec import ServeSpec
from tasks.spec import NotSeen, Problem, Spec
from tasks.tokenizer_files import vocabulary
from workflows.costs import over_budget
from workflows.environment_checks import problems_of_environments
from workflows.model_checks import problems_of_models, with_vllm
from workflows.pod_defaults import too_small
from workflows.post_training import names_problems, rank_problems
from workflows.reward_checks import problems_of_rewards
from workflows.row_checks import problems_of_rows
from workflows.run_context import (
    RunContext,
    devices_of,
    is_for_a_cluster,
    is_planned_for_another_machine,
    placements_of,
    positions_of,
    runs_on_a_cluster,
    vocabulary_of,
)
from workflows.secret_checks import secret_values, unset_variables
from workflows.task_checks import problems_of_metrics, problems_of_tasks
from workflows.tuning_room import tuning_room, vllm_room

# stage: the stage it needs, and that stage's output
NEEDS = {
    "tokenizer": ("corpus", "the text to train it on, and to tokenize"),
    "shards": ("tokenizer", "the tokenizer that makes the shards"),
    "pretrain": ("shards", "tokenized text"),
    "convert": ("pretrain", "a checkpoint to convert"),
    "init_from": ("pretrain", "the stage that starts from that model"),
}
NEED_A_MODEL = ("evaluate", "post_training", "serve", "publish")
SAMPLED = (EvaluateSpec, PostTrainSpec, ServeSpec)  # their specs give their sequences' lengths
# pretrain.model's fields as named in config.json
IN_CONFIG = {
    "family": "model_type", "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads", "head_dim": "head_dim", "vocab_size": "vocab_size",
    "tied_embeddings": "tie_word_embeddings",
}  # fmt: skip
WITH_START_FROM_OFF = ("tokenizer", "shards", "init_from", "pretrain", "convert")


def problems_of(context: RunContext) -> list[Problem]:
    """Every problem of the recipe as a whole, and of each stage's fields together. With a secret in it nothing is
    looked up: the secret would be in requests and in messages."""
    if secrets := secret_values(context):
        return [*_across_fields(context), *order(context), *secrets]
    return [problem for check in (*FOR_A_DAG, *CHECKS) for problem in check(context)]


def has_dag(context: RunContext) -> bool:
    """Whether the recipe is valid enough to compile its DAG."""
    return not any(check(context) for check in FOR_A_DAG)


def _across_fields(context: RunContext) -> list[Problem]:
    """Each stage's own problems."""
    return [problem.under(name) for name, spec in _parts(context) for problem in spec.problems()]


def _parts(context: RunContext) -> Iterator[tuple[str, Spec]]:
    """(path, spec) of every section, and of every item of a section that is a list or a dictionary."""
    for name, section in context.specs.items():
        if isinstance(section, Spec):
            yield name, section
        elif isinstance(section, dict | list):
            items = section.items() if isinstance(section, dict) else enumerate(section)
            yield from ((f"{name}.{key}", item) for key, item in items)


def order(context: RunContext) -> list[Problem]:
    """Each stage's input comes from a stage that is on."""
    found = []
    if "start_from" in context:
        found += [
            Problem(stage, "on", "must be left out with start_from, which brings a model and its tokenizer")
            for stage in WITH_START_FROM_OFF
            if stage in context
        ]
    else:
        found += [
            Problem(stage, "on", f"needs {before} ({what}); add `{before}:` or leave `{stage}:` out")
            for stage, (before, what) in NEEDS.items()
            if stage in context and before not in context
        ]
        found += [
            Problem(stage, "on", "needs a model: add `convert:` (with pretrain) or `start_from:`, or leave it out")
            for stage in NEED_A_MODEL
            if stage in context and "convert" not in context
        ]
    return found


def inputs(context: RunContext) -> list[Problem]:
    """Files and folders that the recipe names exist."""
    found = []
    for name in ("corpus", "tokenizer", "start_from", "init_from"):
        if name in context.specs:
            found += [problem.under(name) for problem in context.specs[name].missing()]
    for index, corpus in enumerate(context.specs.get("more_corpora", ())):
        found += [problem.under(f"more_corpora.{index}") for problem in corpus.missing()]
    for name, rows in context.specs.get("data", {}).items():
        found += [problem.under(f"data.{name}") for problem in rows.missing()]
    if this_pod():
        return [_with_the_pods_way(problem) for problem in found]
    if not is_for_a_cluster():
        return found
    for problem in found:
        if isinstance(problem, NotSeen):  # pods may have credentials for it
            say(f"{problem}. The run's first pod checks it again")
    return [problem for problem in found if not isinstance(problem, NotSeen)]


def _with_the_pods_way(problem: Problem) -> Problem:
    """A path that is not there, as in a recipe that no client has read: one typed in Flyte's console."""
    if isinstance(problem.value, str) and Path(problem.value).is_absolute():
        way_out = "A pod reads no other machine's files: name an address (s3://…), or start the run by pyflyte run"
        return replace(problem, allowed=f"{problem.allowed}. {way_out}")
    return problem


def _named_rows(context: RunContext) -> list[Problem]:
    """Each set of rows that a stage names is defined, and has rows left to train on."""
    sets = context.specs.get("data", {})
    named = {f"{step.path}.data": step.spec.data for step in context.tunings()}
    if "evaluate" in context:
        evaluators = context.specs["evaluate"].evaluators()
        named |= {f"evaluate.{name}.data": spec.data for name, spec in evaluators.items() if spec.data is not None}
    allowed = f"one of {', '.join(sets)}" if sets else "a set of rows: add it under `data:`"
    found = [Problem(path, name, allowed) for path, name in named.items() if name not in sets]
    for step in context.tunings():
        if (rows := sets.get(step.spec.data)) and rows.held_out == 1 and not rows.documents:
            found.append(Problem(f"data.{step.spec.data}.held_out", 1.0, f"less than 1: {step.path} trains on the set"))
    return found


def _data_sets(context: RunContext) -> list[Problem]:
    """Additional corpora are used, and there is one weight per data set."""
    more = len(context.specs.get("more_corpora", ()))
    if more and "pretrain" not in context:
        allowed = "none without pretraining: add `pretrain:` or leave them out"
        return [Problem("more_corpora", f"{more} corpora", allowed)]
    named = [number for number, corpus in enumerate(context.specs.get("more_corpora", ())) if corpus.sources]
    if named:
        allowed = "one source each: move its sources into corpus.sources, which have weights and one tokenizer too"
        return [Problem(f"more_corpora.{number}.sources", "on", allowed) for number in named]
    weights = context.specs["pretrain"].data_weights if "pretrain" in context.specs else None
    if weights is None or len(weights) == 1 + more:
        return []
    return [Problem("pretrain.data_weights", weights, f"one for the corpus and one for each of {more} more_corpora")]


def _vocabulary(context: RunContext) -> list[Problem]:
    """The embedding has a row for every token."""
    if not {"tokenizer", "pretrain"} <= context.specs.keys():
        return []
    rows, tokens = context.specs["pretrain"].model.vocab_size, context.specs["tokenizer"].size()
    if rows is None or tokens is None or rows >= tokens:
        return []
    return [Problem("pretrain.model.vocab_size", rows, f"at least the tokenizer's vocabulary ({tokens})")]


def _positions(context: RunContext) -> list[Problem]:
    """No stage's sequences are longer than the model's positions."""
    known = positions_of(context)
    if known is None:
        return []
    (positions, where), found = known, []
    for name, spec in context.stages().items():
        for length, value in spec.sequence_lengths().items() if isinstance(spec, SAMPLED) else ():
            if value > positions:
                found.append(Problem(f"{name}.{length}", value, f"at most {where} ({positions})"))
    return found


def _post_training(context: RunContext) -> list[Problem]:
    """Names and starting models are valid, and there is post-training for `seeds` to repeat."""
    tunings, seeds = context.specs.get("post_training", []), context.specs.get("seeds", 1)
    if seeds > 1 and not tunings:
        return [Problem("seeds", seeds, "1, or add `post_training:`, which `seeds` repeats")]
    return names_problems(tunings) + rank_problems(tunings)


def _text(context: RunContext) -> list[Problem]:
    """Whatever reads the corpus's documents has a corpus."""
    if "corpus" in context.specs:
        return []
    readers = [f"data.{name}.documents" for name, rows in context.specs.get("data", {}).items() if rows.documents]
    if "evaluate" in context and context.specs["evaluate"].bits_per_byte:
        readers.append("evaluate.bits_per_byte")
    return [
        Problem(path, "on", "needs corpus (the text that it reads); add `corpus:` or leave it out") for path in readers
    ]


def _decontamination(context: RunContext) -> list[Problem]:
    """What a corpus is decontaminated against can be prepared before it."""
    found = []
    evaluated = context.specs["evaluate"].sets() if "evaluate" in context else []
    of_documents = [
        name for name, rows in context.specs.get("data", {}).items() if name in evaluated and rows.documents
    ]
    corpora = {path: spec for path, spec in context.stages().items() if isinstance(spec, CorpusSpec)}
    for path, spec in corpora.items():
        for number, step in enumerate(spec.curate):
            if not against_evaluation([step]):
                continue
            field = f"{path}.curate.{number}.decontaminate.against"
            if not evaluated:
                allowed = "files with the items; or add `evaluate:` with `data:` (lm-eval's tasks have no rows here)"
                found.append(Problem(field, EVALUATE, allowed))
            found += [
                Problem(field, EVALUATE, f"files: data.{name} is made of the corpus itself (`documents: true`)")
                for name in of_documents
            ]
    return found


def _best(context: RunContext) -> list[Problem]:
    """The metric that selects the published model is measured."""
    best = context.specs["publish"].best if "publish" in context else None
    if best is None:
        return []
    spec = context.specs.get("evaluate")
    names = spec.metrics() if spec else []
    of_lm_eval = [name for name, evaluator in spec.evaluators().items() if evaluator.lm_eval] if spec else []
    if best in names or best.partition(".")[0] in of_lm_eval:  # which task_checks.py looks up
        return []
    known = [*names, *(f"{name}.<task>.<metric>" for name in of_lm_eval)]
    allowed = f"one of {', '.join(known)}" if known else "null, or add `evaluate:`, which measures it"
    return [Problem("publish.best", best, allowed)]


def _head_size(context: RunContext) -> list[Problem]:
    """vLLM has attention kernels for the model's head size."""
    stages = with_vllm(context)
    if "pretrain" not in context.specs or not stages:
        return []
    size = context.specs["pretrain"].model.head_dim
    if size in HEAD_SIZES:
        return []
    allowed = f"one of {', '.join(map(str, HEAD_SIZES))}: vLLM ({', '.join(stages)}) supports no other"
    return [Problem("pretrain.model.head_dim", size, allowed)]


def _convertible(context: RunContext) -> list[Problem]:
    """The family's Hugging Face model can represent the trained one."""
    if "convert" not in context or "pretrain" not in context.specs:
        return []
    return [problem.under("pretrain.model") for problem in unexportable(context.specs["pretrain"].model)]


def _same_model(context: RunContext) -> list[Problem]:
    """The pretrained model has the shape of the one that it starts from."""
    if not {"pretrain", "init_from"} <= context.specs.keys():
        return []
    model, config = context.specs["pretrain"].model, context.specs["init_from"].config() or {}
    return [
        Problem(f"pretrain.model.{ours}", getattr(model, ours), f"{config[theirs]}, as init_from.model's {theirs} is")
        for ours, theirs in IN_CONFIG.items()
        if config.get(theirs) is not None and getattr(model, ours) != config[theirs]
    ]


def _same_tokenizer(context: RunContext) -> list[Problem]:
    """The tokens' ids are those of the model that pretraining starts from, as far as both are on this machine."""
    if not {"tokenizer", "init_from"} <= context.specs.keys():
        return []
    spec, model = context.specs["tokenizer"], context.specs["init_from"]
    wanted = f"the tokenizer of init_from.model ({model.model}), whose weights are for its tokens"
    if spec.existing is None:
        return [Problem("tokenizer.existing", None, wanted)]
    try:
        folders = spec.folder(), model.folder()
    except StorageError:
        return []  # missing() reports why
    ours, theirs = (folder and vocabulary(folder) for folder in folders)
    if not ours or not theirs:
        return []
    of_model = {number: token for token, number in theirs.items()}
    other = [(number, token) for token, number in ours.items() if of_model.get(number, token) != token]
    if not other:
        return []
    number, token = min(other)
    example = f"{len(other)} ids are other tokens; {number}, for example, is {token!r} and not {of_model[number]!r}"
    return [Problem("tokenizer.existing", spec.existing, f"{wanted}: {example}")]


def _hardware(context: RunContext) -> list[Problem]:
    """The layout's device is known; it, or this machine, has enough GPUs and supports the precision."""
    spec: PretrainSpec | None = context.specs.get("pretrain")
    if spec is None:
        return []
    layout, gpus = spec.layout, context.machine.gpus
    if layout.device and layout.device not in BY_NAME:
        return [Problem("pretrain.layout.device", layout.device, f"one of {', '.join(BY_NAME)}")]
    found = []
    if gpus and devices_of(spec) == [None] and layout.processes > len(gpus):
        allowed = (
            f"at most this machine's GPUs ({len(gpus)}), one for each process; or name another GPU in layout.device"
        )
        found.append(Problem("pretrain.layout.processes", layout.processes, allowed))
    if spec.precision == "fp8":
        found += [problem for device in devices_of(spec) for problem in _fp8(device, gpus)]
    return found


def _fp8(device: str | None, gpus: tuple[str, ...]) -> list[Problem]:
    """fp8 needs tensor cores for it, and Transformer Engine where the run takes place."""
    if device is None and not gpus:
        why = "needs a GPU of NVIDIA's Hopper generation or newer, and this machine has none"
    elif (chip := BY_NAME.get(device) if device else accelerator(gpus[0])) and not chip.peak("fp8"):
        why = f"{chip.name} has no fp8 arithmetic; Hopper (H100, H200) and newer do"
    elif not (device or is_planned_for_another_machine() or importlib.util.find_spec("transformer_engine")):
        why = "needs Transformer Engine, which is not installed here (`pip install transformer-engine[pytorch]`)"
    else:
        return []
    return [Problem("pretrain.precision", "fp8", f"{why}; bf16 runs everywhere")]


def _layout(context: RunContext) -> list[Problem]:
    """The layout can split the tokenizer's vocabulary, and a process's tensors fit wherever it may run."""
    spec: PretrainSpec | None = context.specs.get("pretrain")
    if spec is None or any(not problem.path.startswith("optimizer") for problem in spec.problems()):
        return []  # reported by the spec
    vocabulary = vocabulary_of(context)
    if vocabulary is None:
        return []
    if wrong := spec.layout_problems(vocabulary):
        return [problem.under("pretrain.layout") for problem in wrong]
    found = []
    for device in devices_of(spec):
        place = place_of(spec.layout.model_copy(update={"device": device}), context.machine)
        if place is None or place.has_room_for(needed := estimate(spec, vocabulary, place.kernels)):
            continue
        allowed = (
            f"needs {needed.total / GB:.3g} GB on each {place.name} ({place.capacity / GB:.3g} GB): "
            f"{needed.breakdown()}; " + _instead(spec, vocabulary, place)
        )
        found.append(Problem("pretrain.layout", spec.layout.name(), allowed))
    return found


def _instead(spec: PretrainSpec, vocabulary: int, place: Place) -> str:
    """Suggest a layout that fits."""
    found = fitting(spec, vocabulary, place)
    if found is None:
        return "no layout of it fits: use more or larger devices, shorter sequences or a smaller model"
    smaller = estimate(spec.model_copy(update={"layout": found}), vocabulary, place.kernels)
    return f"use {found.as_yaml()}, which needs {smaller.total / GB:.3g} GB"


def _room(context: RunContext) -> list[Problem]:
    """This machine's disk has room for what the run writes to it."""
    spec: PretrainSpec | None = context.specs.get("pretrain")
    if spec is None or spec.layout.device or spec.placement or runs_on_a_cluster() or is_planned_for_another_machine():
        return []
    needed = estimated_bytes(context, spec.model.parameters(vocabulary_of(context) or 0))
    free = shutil.disk_usage(baton_home()).free
    if needed <= free:
        return []
    allowed = (
        f"about {needed / 1e9:,.1f} GB will be written and {free / 1e9:,.1f} GB are free in {baton_home()}: "
        "lower checkpoints.keep_last, make room, or set BATON_HOME to a larger disk"
    )
    return [Problem("pretrain.checkpoints.keep_last", spec.checkpoints.keep_last, allowed)]


def _placements(context: RunContext) -> list[Problem]:
    """A placed stage has as many nodes as its layout, an accelerator for each process, its secrets, and storage that
    its nodes share."""
    found, specs = [], context.stages()
    for name, placement in placements_of(context).items():
        spec = specs[name]
        nodes, processes, field, each = 1, 1, "", "layout.processes"
        if isinstance(spec, PretrainSpec):
            nodes, processes, field = spec.layout.nodes, spec.layout.processes, "layout.nodes"
        elif isinstance(spec, PostTrainSpec):
            nodes, processes, field = spec.machines, spec.devices, "layout.nodes"
            if isinstance(spec, GRPOSpec) and spec.rollout_servers:
                field, each = f"{field} and rollout_servers.nodes", f"{each} and of the rollout servers' GPUs"
        elif isinstance(spec, CorpusSpec):
            nodes, field = spec.partitions.machines, "partitions.machines"
        elif isinstance(spec, ShardsSpec):
            nodes, field = spec.machines, "machines"
        if placement.nodes != nodes:
            what = f"as {field} {'are together' if ' and ' in field else 'is'}" if field else "this stage runs on one"
            found.append(Problem(f"{name}.placement.nodes", placement.nodes, f"{nodes}: {what}"))
        one_each = isinstance(spec, PretrainSpec) or processes > 1
        for number, chips in enumerate(placement.accelerators if one_each else ()):
            chip, _, count = chips.partition(":")
            if float(count or 1) != processes:
                allowed = f"{chip}:{processes}: one for each of {each}"
                found.append(Problem(f"{name}.placement.accelerators.{number}", chips, allowed))
        if placement.setup and redact_text(placement.setup) != placement.setup:
            allowed = (
                "lines without secrets: a recipe is stored as plain text. Set an environment variable, name it in "
                f"{name}.placement.secrets: [NAME], and write $NAME here"
            )
            found.append(Problem(f"{name}.placement.setup", HIDDEN, allowed))
        for number, secret in enumerate(placement.secrets if _starts_jobs() else ()):
            if not os.environ.get(secret):
                allowed = f"an environment variable that is set here: export {secret}=…"
                found.append(Problem(f"{name}.placement.secrets.{number}", secret, allowed))
        storage = storage_of(placement.storage)
        if nodes > 1 and is_bucket(storage):
            allowed = "a folder that the machines share: they write into it together"
            found.append(Problem(f"{name}.placement.storage", storage, allowed))
    return found


def _starts_jobs() -> bool:
    """Whether this machine starts SkyPilot's jobs, rather than a cluster's connector."""
    return importlib.util.find_spec("sky") is not None and not runs_on_a_cluster()


# bytes per parameter: bf16 weights, fp32 master weights and Adam's two moments; bf16 weights in an exported model
CHECKPOINT_BYTES = 2 + 4 + 4 + 4
MODEL_BYTES = 2
TUNING_BYTES = 4 + 4 + 4  # TRL's checkpoints: fp32 weights and Adam's two moments


def estimated_bytes(context: RunContext, parameters: int) -> int:
    """Approximate bytes that the run writes: checkpoints (one more while saving), and models."""
    spec = context.specs["pretrain"]
    kept = (spec.checkpoints.keep_last + 1) * CHECKPOINT_BYTES
    tuned = len(context.tunings()) * context.specs.get("seeds", 1)
    models = MODEL_BYTES * (1 + tuned + ("publish" in context)) + 2 * TUNING_BYTES * bool(tuned)
    return int(parameters * (kept + models))


FOR_A_DAG: list[Callable[[RunContext], list[Problem]]] = [
    _across_fields,
    order,
    inputs,
    _data_sets,
    _named_rows,
    _post_training,
    _text,
]
CHECKS: list[Callable[[RunContext], list[Problem]]] = [
    problems_of_models,
    problems_of_rows,
    problems_of_rewards,
    problems_of_environments,
    unset_variables,
    _decontamination,
    _best,
    _vocabulary,
    _positions,
    problems_of_tasks,
    problems_of_metrics,
    _head_size,
    _convertible,
    _same_model,
    _same_tokenizer,
    _hardware,
    _layout,
    tuning_room,
    vllm_room,
    _room,
    _placements,
    too_small,
    over_budget,
]
