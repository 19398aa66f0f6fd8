"""Tasks of lm-eval (EleutherAI's lm-evaluation-harness), by name or as YAML files.

Their numbers become metrics `<task>.<metric>`, with the name of lm-eval's filter behind it where there is one
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
from tasks.evaluate.task_files import is_file_name, with_absolute_data, write
from tasks.job import StageError
from tasks.metric import Metric

RESAMPLES = 1_000  # for the standard error of a metric that is not a mean
SHARES = ("acc", "acc_norm", "acc_all", "exact_match", "f1", "mcc", "em")  # of 1
# fields that differ between equal evaluations
PASSING = ("date", "pretty_env_info", "total_evaluation_time_seconds", "git_hash", "upper_git_hash")


@dataclass(frozen=True)
class Harnessed:
    metrics: dict[str, Metric]
    results: dict[str, Any]  # lm-eval's own
    items: list[dict[str, Any]]  # a line for each document: id, rewards (its metrics)


@dataclass(frozen=True)
class Tasks:
    """An evaluator's tasks and groups with their data."""

    spec: EvaluatorSpec
    folder: Path  # of their files
    manager: TaskManager
    loaded: list[Any]


def run_tasks(tasks: Tasks, model: VLLMModel, seed: int) -> Harnessed:
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # lm-eval's bootstrap would fork this process with its engine
    spec = tasks.spec
    found = simple_evaluate(
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
    samples = found.pop("samples")
    kept = {key: value for key, value in found.items() if key not in PASSING}
    told = json.dumps(kept, default=handle_non_serializable)
    results = json.loads(told.replace(f"{tasks.folder}/", ""))  # the same wherever it was evaluated
    return Harnessed(dict(_metrics(results)), results, list(_items(results, samples)))


def load_task(path: Path) -> dict[str, Any]:
    """A task by its YAML file."""
    return with_absolute_data(load_yaml(path, resolve_func=True, recursive=True), path.parent)


def load_tasks(name: str, spec: EvaluatorSpec, folder: Path) -> Tasks:
    """The tasks of the evaluator `name`, their files written below `folder`: before the model is asked anything. Raises
    StageError."""
    write(spec.task_files or {}, folder)
    manager = TaskManager(include_defaults=not all(map(is_file_name, spec.lm_eval)))
    try:
        loaded = manager.load([load_task(folder / each) if is_file_name(each) else each for each in spec.lm_eval])
    except (KeyError, OSError, ValueError, ImportError, AttributeError) as error:
        raise StageError(
            f"evaluate.{name}.lm_eval: {', '.join(spec.lm_eval)}: {type(error).__name__}: {str(error)[:500]}. Tasks "
            "are named as in lm-eval (`lm_eval ls tasks`), or are YAML files; their data is a local file "
            "(`dataset_path: json`) or, with access to it, a set on the Hugging Face hub"
        ) from error
    groups, tasks = loaded["groups"].values(), loaded["tasks"].values()
    inner = {id(each) for group in groups for each in (*group.get_all_groups(), *group.get_all_tasks())}
    return Tasks(spec, folder, manager, [each for each in (*groups, *tasks) if id(each) not in inner])


def _metrics(results: dict[str, Any]) -> Iterator[tuple[str, Metric]]:
    for task, values in results["results"].items():
        for key, value in values.items():
            measure, comma, applied = key.partition(",")
            if not comma or measure.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = values.get(f"{measure}_stderr,{applied}")
            # a group whose tasks differ in direction has none
            more_is_better = results["higher_is_better"].get(task, {}).get(measure)
            yield (
                _name(task, measure, applied),
                Metric(
                    float(value),
                    float(error) if isinstance(error, int | float) else None,
                    int(results["n-samples"].get(task, {}).get("effective", 0)),
                    "share" if measure in SHARES else "",
                    True if more_is_better is None else bool(more_is_better),
                ),
            )


def _items(results: dict[str, Any], samples: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """A line for each document, of the metrics that are the mean over documents: accuracy is, perplexity is not."""
    for task, lines in samples.items():
        values: dict[tuple[str, str], dict[str, Any]] = {}
        for line in lines:
            document = f"{task}.{line['doc_id']}.{line['doc_hash'][:12]}"
            for measure in line["metrics"]:
                values.setdefault((measure, line["filter"]), {})[document] = line[measure]
        found: dict[str, dict[str, float]] = {}
        for (measure, applied), of in values.items():
            whole = results["results"][task].get(f"{measure},{applied}")
            if all(isinstance(value, Real) for value in (whole, *of.values())) and math.isclose(
                fmean(of.values()), whole, abs_tol=1e-9
            ):
                for document, value in of.items():
                    found.setdefault(document, {})[_name(task, measure, applied)] = float(value)
        yield from ({"id": document, "rewards": rewards} for document, rewards in found.items())


def _name(task: str, measure: str, applied: str) -> str:
    return f"{task}.{measure}" + (f".{applied}" if applied != "none" else "")
