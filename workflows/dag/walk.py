"""Run a DAG's calls as Flyte tasks, or compile them into its nodes."""

from collections.abc import Collection, Mapping
from typing import Any

from tasks.choose.task import choose
from tasks.convert.task import audit, convert, import_hf, load_hf
from tasks.core.called import Called
from tasks.custom.task import custom_artifact, custom_model
from tasks.data.task import (
    compact,
    encode_partitions,
    find_new,
    gather,
    prepare_clean_corpus,
    prepare_corpus,
    read_partitions,
    tokenize,
    train_tokenizer,
)
from tasks.evaluate.task import evaluate
from tasks.posttrain.task import TASKS as POST_TRAINING
from tasks.pretrain.task import pretrain
from tasks.promote.task import decide, promote
from tasks.publish.task import publish
from tasks.report.task import report
from tasks.reward_check.task import check_rewards
from tasks.rows.task import decontaminate, prepare_rows
from tasks.serve.task import serve
from workflows.dag.call import Call, Calls, Input

STAGES: tuple[Any, ...] = (
    read_partitions, prepare_corpus, prepare_clean_corpus, find_new, gather, compact, prepare_rows,
    decontaminate, check_rewards, train_tokenizer, encode_partitions, tokenize, import_hf, load_hf, pretrain, convert,
    audit, evaluate, *POST_TRAINING.values(), custom_artifact, custom_model, choose, decide, serve, publish, promote,
    report,
)  # fmt: skip
TASKS: dict[str, Any] = {task.name.rpartition(".")[2]: task for task in STAGES}


def walk(dag: Calls, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The artifacts, or while Flyte compiles the promises of them, that the calls make, by title. `given`: those that
    exist before."""
    outputs = {**(given or {})}
    upstream: dict[str, set[str]] = {}  # of each call of the DAG, by title
    for call in dag:
        before = (call.titles() | {*call.after}) & upstream.keys()
        upstream[call.title] = before.union(*(upstream[title] for title in before))
        output = TASKS[call.stage](**arguments(call, outputs, upstream[call.title]))
        for title in call.after:
            outputs[title] >> output
        outputs[call.title] = output
    return outputs


def arguments(call: Call, outputs: Mapping[str, Any], upstream: Collection[str] = ()) -> dict[str, Any]:
    """What the call's Flyte task is called with. `upstream`: the titles of the calls that it depends on."""
    inputs = {name: _filled(value, outputs) for name, value in call.inputs.items()}
    return {"spec": call.spec, "how": Called(call.title, tuple(upstream)).how(), **inputs}


def _filled(value: Input, outputs: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {name: outputs[title] for name, title in value.items()}
    return outputs[value] if isinstance(value, str) else [outputs[title] for title in value]
