"""Run tasks of lm-eval (EleutherAI's lm-evaluation-harness), given by name or as YAML files.

Results become metrics `<task>.<metric>`, followed by the name of lm-eval's filter if there is one
(`gsm8k.exact_match.strict-match`); `results` is what lm-eval itself would write.
"""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from statistics import fmean
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from lm_eval.utils import handle_non_serializable

from tasks.evaluate.language_model import VLLMModel
from tasks.evaluate.spec import EvaluatorSpec
from tasks.evaluate.task_files import is_file_name, with_absolute_data
from tasks.functions import write_files
from tasks.job import StageError
from tasks.metric import Metric

RESAMPLES = 1_000  # for the standard error of a metric that is not a mean
SHARES = ("acc", "acc_norm", "acc_all", "exact_match", "f1", "mcc", "em")  # metrics in [0, 1]
# fields that differ between identical evaluations
VOLATILE = ("date", "pretty_env_info", "total_evaluation_time_seconds", "git_hash", "upper_git_hash")


@dataclass(frozen=True)
class Harnessed:
    metrics: dict[str, Metric]
    results: dict[str, Any]  # lm-eval's own
    items: list[dict[str, Any]]  # per document: id, rewards (its metrics)


@dataclass(frozen=True)
class Tasks:
    """An evaluator's tasks and groups, with their data loaded."""

    spec: EvaluatorSpec
    folder: Path  # contains their files
    manager: TaskManager
    loaded: list[Any]


def run_tasks(tasks: Tasks, model: VLLMModel, seed: int) -> Harnessed:
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # lm-eval's bootstrap would fork this process and its engine
    spec = tasks.spec
    output = simple_evaluate(
        model=model,
        tasks=tasks.loaded,
        task_manager=tasks.manager,
        num_fewshot=spec.few_shot,
        limit=spec.limit,
        bootstrap_iters=RESAMPLES,
        log_samples=True,
        apply_chat_template=spec.chat_template,
        random_seed=seed,
        numpy_random_seed=seed,
        torch_random_seed=seed,
        fewshot_random_seed=seed,
    )
    samples = output.pop("samples")
    stable = {key: value for key, value in output.items() if key not in VOLATILE}
    text = json.dumps(stable, default=handle_non_serializable)
    results = json.loads(text.replace(f"{tasks.folder}/", ""))  # independent of the machine's paths
    return Harnessed(dict(_metrics(results)), results, list(_items(results, samples)))


def load_task(path: Path) -> dict[str, Any]:
    """Read a task's YAML file."""
    return with_absolute_data(load_yaml(path, resolve_func=True, recursive=True), path.parent)


def load_tasks(name: str, spec: EvaluatorSpec, folder: Path) -> Tasks:
    """Load the tasks of evaluator `name`, writing their files below `folder`. Runs before the engine starts. Raises
    StageError."""
    write_files(spec.task_files or {}, folder)
    manager = TaskManager(include_defaults=not all(map(is_file_name, spec.lm_eval)))
    try:
        loaded = manager.load([load_task(folder / task) if is_file_name(task) else task for task in spec.lm_eval])
    except (KeyError, OSError, ValueError, ImportError, AttributeError) as error:
        raise StageError(
            f"evaluate.{name}.lm_eval: {', '.join(spec.lm_eval)}: {type(error).__name__}: {str(error)[:500]}. Give "
            "tasks by lm-eval's names (`lm_eval ls tasks`) or as YAML files; their data is a local file "
            "(`dataset_path: json`) or an accessible data set on the Hugging Face Hub"
        ) from error
    groups, tasks = loaded["groups"].values(), loaded["tasks"].values()
    nested = {id(member) for group in groups for member in (*group.get_all_groups(), *group.get_all_tasks())}
    return Tasks(spec, folder, manager, [task for task in (*groups, *tasks) if id(task) not in nested])


def _metrics(results: dict[str, Any]) -> Iterator[tuple[str, Metric]]:
    for task, values in results["results"].items():
        for key, value in values.items():
            measure, comma, filter_name = key.partition(",")
            if not comma or measure.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = values.get(f"{measure}_stderr,{filter_name}")
            # missing for a group whose tasks differ in direction
            higher_is_better = results["higher_is_better"].get(task, {}).get(measure)
            yield (
                _name(task, measure, filter_name),
                Metric(
                    float(value),
                    float(error) if isinstance(error, int | float) else None,
                    int(results["n-samples"].get(task, {}).get("effective", 0)),
                    "share" if measure in SHARES else "",
                    True if higher_is_better is None else bool(higher_is_better),
                ),
            )


def _items(results: dict[str, Any], samples: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield one line per document with the metrics that are means over documents: accuracy is, perplexity isn't."""
    for task, lines in samples.items():
        values: dict[tuple[str, str], dict[str, Any]] = {}
        for line in lines:
            document = f"{task}.{line['doc_id']}.{line['doc_hash'][:12]}"
            for measure in line["metrics"]:
                values.setdefault((measure, line["filter"]), {})[document] = line[measure]
        rewards: dict[str, dict[str, float]] = {}
        for (measure, filter_name), by_document in values.items():
            total = results["results"][task].get(f"{measure},{filter_name}")
            if all(isinstance(value, Real) for value in (total, *by_document.values())) and math.isclose(
                fmean(by_document.values()), total, abs_tol=1e-9
            ):
                for document, value in by_document.items():
                    rewards.setdefault(document, {})[_name(task, measure, filter_name)] = float(value)
        yield from ({"id": document, "rewards": metrics} for document, metrics in rewards.items())


def _name(task: str, measure: str, filter_name: str) -> str:
    return f"{task}.{measure}" + (f".{filter_name}" if filter_name != "none" else "")
