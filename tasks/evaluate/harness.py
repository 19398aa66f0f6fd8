"""Run tasks of lm-eval (EleutherAI's lm-evaluation-harness), which are given by name or as YAML files.

    tasks = load_tasks("mine", evaluator, folder)      # with their data
    requests = build(tasks, model, seed)               # every prompt, before the engine starts
    harnessed = run_tasks(tasks, model, seed)

Results become metrics `<task>.<metric>`, followed by the name of lm-eval's filter if there is one
(`gsm8k.exact_match.strict-match`); `results` is the content of the file that lm-eval itself would write.
"""

import json
import logging
import math
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from statistics import fmean
from typing import Any, NoReturn

from lm_eval import simple_evaluate
from lm_eval.api.group import Group
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.model import LM
from lm_eval.api.registry import AGGREGATION_REGISTRY, is_higher_better
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable

from baton.tasks.core.job import StageError
from baton.tasks.core.metric import Metric
from baton.tasks.evaluate.spec import EvaluatorSpec
from baton.tasks.evaluate.task_configs import register
from baton.tasks.evaluate.task_files import place
from baton.tasks.user_code.load_function import described

RESAMPLES = 1_000  # for the standard error of a metric that is not a mean
# Metrics of lm-eval that lie in [0, 1] (lm_eval/api/metrics.py); a task's own function may use the same name for
# percentages
SHARES = ("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "acc_all", "exact_match", "em", "f1")
MODEL = "language_model.py"
HINTS: dict[type[BaseException], str] = {
    ImportError: ". Install what the task needs; for lm-eval's tasks it is one of its extras (lm-eval[ifeval])",
    OSError: ". A task's data is local files (`dataset_path: json`) or an accessible data set on the Hugging Face Hub; "
    "local files, also those that its Python code reads, must be in the folder of its YAML file",
}
# Fields that differ between identical evaluations
VOLATILE = ("date", "pretty_env_info", "total_evaluation_time_seconds", "git_hash", "upper_git_hash")


@dataclass(frozen=True)
class Harnessed:
    metrics: dict[str, Metric]
    results: dict[str, Any]  # lm-eval's results
    items: list[dict[str, Any]]  # per document: id, rewards (the document's metrics)


@dataclass(frozen=True)
class Tasks:
    """An evaluator's tasks and groups, with their data loaded."""

    name: str  # name of the evaluator
    spec: EvaluatorSpec
    folder: Path  # folder with the tasks' files
    manager: TaskManager
    names: list[str]  # names of the tasks and groups that the recipe lists
    loaded: list[Any]

    @property
    def single(self) -> list[Any]:
        """All tasks, including those in groups."""
        return [one for item in self.loaded for one in (item.get_all_tasks() if isinstance(item, Group) else [item])]


def load_tasks(name: str, spec: EvaluatorSpec, folder: Path) -> Tasks:
    """Load the tasks of evaluator `name`, writing their files below `folder`. Raises StageError, StorageError."""
    folder.mkdir(parents=True, exist_ok=True)
    place(folder, spec.task_files or {}, spec.task_data, spec.task_place)
    where = f"evaluate.{name}.lm_eval: {', '.join(spec.lm_eval)}"
    with _errors_named(where, folder):
        manager, names = register(spec.lm_eval, [*(spec.task_files or ()), *spec.task_data], folder)
        loaded: list[Any] = []
        for one in names:
            tree = manager.load([one])
            groups = [*tree["groups"].values()]
            nested = {id(inner) for group in groups for inner in (*group.get_all_groups(), *group.get_all_tasks())}
            loaded += [item for item in (*groups, *tree["tasks"].values()) if id(item) not in nested]
        members = {task.task_name for item in loaded if isinstance(item, Group) for task in item.get_all_tasks()}
        loaded = [item for item in loaded if isinstance(item, Group) or item.task_name not in members]
        manager.load(loaded)  # raises ValueError for a task that is in two groups
    tasks = Tasks(name, spec, folder, manager, names, loaded)
    for task in tasks.single:
        filters = [each["name"] for each in task.config.filter_list or ()]
        if twice := [each for each in filters if filters.count(each) > 1]:
            raise StageError(f"{where}: filter_list of {task.task_name}: two filters have the name {twice[0]!r}")
    return tasks


def build(tasks: Tasks, model: LM, seed: int | None = None) -> list[Instance]:
    """Render every request as lm-eval does for the model. Without a seed, torch need not be imported. Raises
    StageError."""
    with _errors_named(f"evaluate.{tasks.name}.lm_eval", tasks.folder), suppress(_Built):
        _evaluate(tasks, _Receiver(model), seed)
    for task in tasks.single:
        # lm-eval rebuilds requests for each evaluation, which takes minutes for a large task
        task.build_all_requests = lambda **_: None
    return [request for task in tasks.single for request in task.instances]


def run_tasks(tasks: Tasks, model: LM, seed: int | None = None) -> Harnessed:
    """Evaluate the model on the requests that `build` has rendered. Without a seed there are no standard errors. Raises
    StageError."""
    with _errors_named(f"evaluate.{tasks.name}.lm_eval", tasks.folder):
        output = _evaluate(tasks, model, seed)
    samples = output.pop("samples")
    stable = {key: value for key, value in output.items() if key not in VOLATILE}
    text = json.dumps(stable, default=handle_non_serializable)
    results = json.loads(text.replace(f"{tasks.folder}/", ""))  # independent of the machine's paths
    metrics = list(_metrics(results, _shares(tasks, samples), _filters(samples)))
    names = Counter(name for name, _ in metrics)
    if twice := [name for name, times in names.items() if times > 1]:
        raise SameName(
            f"evaluate.{tasks.name}.lm_eval: {twice[0]} is the name of two metrics: rename one, or its filter"
        )
    return Harnessed(dict(metrics), results, list(_items(tasks, results, samples)))


class SameName(StageError):
    """Raised for different metrics of tasks that would have one name in the report."""


class _Built(Exception):
    """Raised when all requests exist."""


class _Receiver(LM):  # type: ignore[misc]  # lm-eval has no types
    """A model that stops lm-eval at the first requests, when all are built."""

    def __init__(self, model: LM) -> None:
        super().__init__()
        self.model = model

    @property
    def tokenizer_name(self) -> str:
        return str(self.model.tokenizer_name)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        template: str | None = self.model.chat_template(chat_template)
        return template

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return str(self.model.apply_chat_template(chat_history, add_generation_prompt=add_generation_prompt))

    def loglikelihood(self, requests: list[Instance]) -> NoReturn:
        raise _Built

    loglikelihood_rolling = generate_until = loglikelihood


def _evaluate(tasks: Tasks, model: LM, seed: int | None) -> dict[str, Any]:
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # lm-eval's bootstrap would fork this process and its engine
    spec = tasks.spec
    output: dict[str, Any] = simple_evaluate(
        model=model,
        tasks=tasks.loaded,
        task_manager=tasks.manager,
        num_fewshot=spec.few_shot,
        limit=spec.limit,
        bootstrap_iters=0 if seed is None else RESAMPLES,
        log_samples=True,
        apply_chat_template=spec.chat_template,
        random_seed=seed or 0,
        numpy_random_seed=seed or 0,
        torch_random_seed=seed,
        fewshot_random_seed=seed or 0,
    )
    return output


@contextmanager
def _errors_named(where: str, folder: Path) -> Iterator[None]:
    """Raise StageError for any exception of lm-eval or of a task's functions, whose current directory is `folder`, but
    not for one of the model, whose engine may have failed."""
    errors = _Errors(logging.ERROR)
    logging.getLogger("lm_eval").addHandler(errors)
    try:
        with chdir(folder):
            yield
    except (StageError, _Built):
        raise
    except (Exception, SystemExit) as error:  # a task's functions may raise anything
        if any(Path(frame.filename).name == MODEL for frame in traceback.extract_tb(error.__traceback__)):
            raise
        hint = next((hint for kind, hint in HINTS.items() if isinstance(error, kind)), "")
        message = ". ".join([described(error, folder), *errors.texts])
        raise StageError(f"{where}: {message[:800]}{hint}") from error
    finally:
        logging.getLogger("lm_eval").removeHandler(errors)


class _Errors(logging.Handler):
    """Collects the errors that lm-eval logs before it raises an exception."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _shares(tasks: Tasks, samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> set[tuple[str, str, str]]:
    """Return the (task or group, metric, filter) of the metrics that are shares."""
    shares: dict[tuple[str, str, str], bool] = {}
    for task in tasks.single:
        for line in samples[task.task_name]:
            for measure in line["metrics"]:
                key = (task.task_name, measure, line["filter"])
                shares[key] = shares.get(key, measure in SHARES) and _is_share(task, measure, line[measure])
    for group in (one for item in tasks.loaded if isinstance(item, Group) for one in (item, *item.get_all_groups())):
        members = {task.task_name for task in group.get_all_tasks()}
        for task, measure, name in [*shares]:
            if task in members:
                of_group = (group.name, measure, name)
                shares[of_group] = shares.get(of_group, True) and shares[task, measure, name]
    return {key for key, share in shares.items() if share}


def _is_share(task: Any, measure: str, value: Any) -> bool:
    """Return whether a document's value lies in [0, 1] or, if it is not a number, whether lm-eval itself aggregates
    it."""
    if isinstance(value, Real):
        return 0 <= float(value) <= 1
    return task.aggregation().get(measure) in AGGREGATION_REGISTRY.values()


def _filters(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the names of all filters, longest first, since a shorter name may be the end of another."""
    return sorted({line["filter"] for lines in samples.values() for line in lines}, key=lambda name: (-len(name), name))


def _metrics(
    results: dict[str, Any], shares: set[tuple[str, str, str]], filters: Sequence[str]
) -> Iterator[tuple[str, Metric]]:
    for task, values in results["results"].items():
        of_group = values.get("sample_count")  # documents by metric; a task has one number for all metrics
        directions = results["higher_is_better"].get(task, {})  # None, for example, if a group's tasks differ
        for key, value in values.items():  # keys are `metric,filter`; both may have commas
            filter_name = next((name for name in filters if key.endswith(f",{name}")), None)
            if filter_name is None or not isinstance(value, int | float):
                continue
            measure = key.removesuffix(f",{filter_name}")
            if measure.endswith("_stderr") and f"{measure.removesuffix('_stderr')},{filter_name}" in values:
                continue
            error = values.get(f"{measure}_stderr,{filter_name}")
            better = directions[measure] if measure in directions else is_higher_better(measure)
            yield (
                metric_name(task, measure, filter_name),
                Metric(
                    float(value),
                    float(error) if isinstance(error, int | float) else None,
                    int(of_group[key] if of_group else results["n-samples"][task]["effective"]),
                    "share" if (task, measure, filter_name) in shares else "",
                    None if better is None else bool(better),
                ),
            )


def _items(tasks: Tasks, results: dict[str, Any], samples: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield one line per document with the metrics that are means over documents, such as accuracy, but not
    perplexity."""
    aggregations = {task.task_name: task.aggregation() for task in tasks.single}
    for task, lines in samples.items():
        values: dict[tuple[str, str], dict[str, Any]] = {}
        for line in lines:
            document = f"{task}.{line['doc_id']}.{line['doc_hash'][:12]}"
            for measure in line["metrics"]:
                values.setdefault((measure, line["filter"]), {})[document] = line[measure]
        rewards: dict[str, dict[str, float]] = {}
        for (measure, filter_name), by_document in values.items():
            total = results["results"][task].get(f"{measure},{filter_name}")
            if (
                _is_mean(aggregations[task].get(measure, mean))
                and all(isinstance(value, Real) for value in (total, *by_document.values()))
                and math.isclose(fmean(by_document.values()), total, abs_tol=1e-9)
            ):
                for document, value in by_document.items():
                    rewards.setdefault(document, {})[metric_name(task, measure, filter_name)] = float(value)
        yield from ({"id": document, "rewards": metrics} for document, metrics in rewards.items())


def _is_mean(aggregation: Callable[[list[float]], Any]) -> bool:
    """Return whether a task's function is a mean for unequal values, since a maximum of equal values equals their
    mean."""
    try:
        return math.isclose(aggregation([0.0, 1.0, 5.0]), 2.0)
    except Exception:  # the user's function fails, or needs values that are not numbers
        return False


def metric_name(task: str, measure: str, filter_name: str) -> str:
    """Return a metric's name in an evaluation, which follows the evaluator's."""
    return f"{task}.{measure}" + (f".{filter_name}" if filter_name != "none" else "")
