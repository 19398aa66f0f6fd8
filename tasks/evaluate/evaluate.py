"""Evaluate one model by bits per byte of held-out text, rewards of its completions, and tasks of lm-eval.

Inputs are "model" (a Hugging Face directory), "corpora.0", … (the first set and the others) and "rows.0", … (in the
order of `spec.sets()`). Outputs are

    report.json             label, model_digest, headline (name of the primary metric)
                            measured     "bits_per_byte" or an evaluator -> the data of its metrics
                            metrics      name -> value, standard_error, count, unit, higher_is_better
                            ceiling      name -> value: rewards of the rows' own completions
                            train        name -> as in metrics: rewards on `train_prompts` training rows, if any
                            sets         bits per byte by corpus: "corpus", "more.0", …
                            questions    per evaluator: numbers of prompts used and left out, of lm-eval's requests and
                                         of truncated ones, and of completions whose thoughts are ignored
                            spec
    documents.jsonl         one line per scored document: set, id, bytes (UTF-8), bits
    completions.jsonl       one line per completion: evaluator, id, prompt, reference, completion (with an environment
                            or tools: the conversation's messages), ended, rewards
    lm_eval/<name>.json     lm-eval's own results of an evaluator
    lm_eval.jsonl           one line per document of lm-eval's tasks: evaluator, id, rewards (its metrics)
    train_completions.jsonl as completions.jsonl, of `train_prompts` training rows, if any
    record/samples.json     the first few completions, for the report

Metrics are `bits_per_byte` (of the first corpus); `<evaluator>.<reward>`, `<evaluator>.pass@<k>` and
`<evaluator>.distinct`; with an environment or tools `<evaluator>.turns`, `.tool_calls`, `.tool_errors` and
`.environments_lost`; and `<evaluator>.<task>.<metric>`. Every model gets the same rows, and its completions are scored
unmodified. An evaluator's metrics don't depend on the other evaluators.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from baton.infra.process.imports import large_imports
from baton.infra.progress import say
from baton.infra.storage.durable import write_json
from baton.infra.text import size
from baton.infra.tracking.redact import redact_spec
from baton.tasks.core.job import Job, StageError, main
from baton.tasks.core.metric import Metric
from baton.tasks.environments.environments import Environments
from baton.tasks.evaluate import questions
from baton.tasks.evaluate.bits_per_byte import bits_per_byte
from baton.tasks.evaluate.episodes import metrics_of_turns
from baton.tasks.evaluate.held_out import FIRST, HeldOutText, choose
from baton.tasks.evaluate.model_info import ModelInfo, read_model_info
from baton.tasks.evaluate.questions import Question
from baton.tasks.evaluate.rewarded import Answers, rewarded, start_rewards
from baton.tasks.evaluate.saved_answers import SavedAnswers
from baton.tasks.evaluate.spec import EvaluateSpec, EvaluatorSpec
from baton.tasks.models.adapter_base import model_of
from baton.tasks.rewards.thinking import ThinkingCounts, in_words

if TYPE_CHECKING:
    from baton.tasks.evaluate.answer import EvaluatedModel
    from baton.tasks.evaluate.harness import Harnessed, Tasks
    from baton.tasks.evaluate.language_model import Lengths

SAMPLES = 12
DISTINCT = ".distinct"  # depends on the number of completions, and so is not compared with that of held-out rows


def work(job: Job) -> None:
    spec = job.spec(EvaluateSpec)
    with ExitStack() as stack:
        tools = {name: evaluator for name, evaluator in spec.evaluators().items() if evaluator.uses_tools()}
        evaluate(job, spec, {name: stack.enter_context(Environments(one)) for name, one in tools.items()})


def evaluate(job: Job, spec: EvaluateSpec, environments: Mapping[str, Environments]) -> None:
    opened = model_of(job)
    info = read_model_info(opened.directory, opened.weights)
    if spec.max_model_len:
        info = replace(info, positions=min(info.positions, spec.max_model_len))
    texts = _texts(job)
    if spec.bits_per_byte is None:
        sets = []
    else:
        sets = [choose(name, path, info, spec.bits_per_byte.held_out_bytes) for name, path in texts.items()]
        _check_text(sets)
    rows = dict(zip(spec.sets(), job.input_list("rows"), strict=True))
    asked = {
        name: questions.choose(name, rows[evaluator.data], evaluator, info, spec.seed, _schemas(environments.get(name)))
        for name, evaluator in spec.evaluators().items()
        if evaluator.data is not None
    }
    asked_train = {
        name: questions.choose(
            name, rows[evaluator.data], evaluator, info, spec.seed, _schemas(environments.get(name)), "train"
        )
        for name, evaluator in spec.evaluators().items()
        if evaluator.data is not None and evaluator.train_prompts
    }
    for name, selected in (*asked.items(), *asked_train.items()):
        if selected.refused:
            job.notice(f"{name}: {len(selected.refused)} rows are left out (faulty: drop): {selected.refused[0]}")
    if asked:
        for notice in info.encoder.notices():
            job.notice(notice)
    for name in asked:
        start_rewards(spec.evaluators()[name])

    with large_imports():  # takes seconds to import vLLM, so after the input's checks
        from baton.tasks.evaluate.answer import EvaluatedModel

    built, measured = _build_tasks(job, spec, info)
    lengths = [
        len(window.tokens) + 1 for held_out in sets for window in held_out.windows
    ]  # vLLM always generates a token
    lengths += [one.longest for one in measured.values()]
    for name, one in (*asked.items(), *asked_train.items()):
        new = spec.evaluators()[name].max_new_tokens
        lengths += [len(question.tokens) + new for question in one.questions]
    saved = SavedAnswers(job)
    model = EvaluatedModel(job, info, saved, spec, max(lengths, default=0))
    documents = [line for held_out in sets for line in held_out.lines(model.bits(held_out.windows))]
    scores = {held_out.name: _scores(held_out, documents) for held_out in sets}
    metrics = {"bits_per_byte": _bits(FIRST, documents)} if sets else {}
    ceiling: dict[str, float] = {}
    train: dict[str, Metric] = {}
    train_lines: list[dict[str, Any]] = []
    counts: dict[str, dict[str, Any]] = {}
    lines: list[dict[str, Any]] = []
    results: dict[str, dict[str, Any]] = {}
    items: list[dict[str, Any]] = []
    for name, evaluator in spec.evaluators().items():
        if name in asked:
            chosen = asked[name].questions
            answers, reward_name, of_turns = _answers(name, evaluator, chosen, environments.get(name), info, model)
            scored = rewarded(job, name, evaluator, chosen, answers, info, saved, reward_name)
            metrics |= {f"{name}.{key}": metric for key, metric in (scored.metrics(evaluator) | of_turns).items()}
            ceiling |= {f"{name}.{key}": value for key, value in scored.ceiling.items()}
            lines += scored.lines(name)
            counts[name] = {"asked": len(chosen), "too_long": asked[name].too_long, "ended": scored.ended}
            thoughts = scored.thoughts
            if name in asked_train:
                learned = asked_train[name].questions
                answers, reward_name, _ = _answers(name, evaluator, learned, environments.get(name), info, model)
                of_train = rewarded(job, name, evaluator, learned, answers, info, saved, reward_name)
                train |= {f"{name}.{key}": metric for key, metric in of_train.metrics(evaluator).items()}
                train_lines += of_train.lines(name)
                counts[name]["train"] = len(learned)
        else:
            harnessed, thoughts = _harnessed(job, name, built[name], info, model)
            metrics |= {f"{name}.{key}": metric for key, metric in harnessed.metrics.items()}
            results[name] = harnessed.results
            items += [{"evaluator": name} | item for item in harnessed.items]
            counts[name] = {"requests": measured[name].requests, "truncated": measured[name].truncated}
        counts[name] |= {"thoughts": thoughts.as_json()} if thoughts.as_json() else {}
    train = {name: metric for name, metric in train.items() if not name.endswith(DISTINCT)}
    _print(metrics, ceiling)
    for name, metric in train.items():
        say(f"{name} on training rows: {metric}, n = {metric.count}")
    for text in _left_out(counts, info):
        job.notice(text)

    facts = {
        "label": info.label,
        "model_digest": job.inputs["model"]["digest"],
        "metrics": {name: asdict(metric) for name, metric in metrics.items()},
        "headline": next((name for name in metrics if name != "bits_per_byte"), next(iter(metrics), "")),
        "measured": _measured(job, spec, scores, counts),
    }
    job.empty_output()
    report = facts | {"ceiling": ceiling, "sets": scores, "questions": counts, "spec": redact_spec(spec.identity())}
    if train:
        report |= {"train": {name: asdict(metric) for name, metric in train.items()}}
        _write_lines(job.output / "train_completions.jsonl", train_lines)
    write_json(job.output / "report.json", report)
    _write_lines(job.output / "documents.jsonl", documents)
    _write_lines(job.output / "completions.jsonl", lines)
    _write_lines(job.output / "lm_eval.jsonl", items)
    for name, result in results.items():
        (job.output / "lm_eval").mkdir(exist_ok=True)
        write_json(job.output / "lm_eval" / f"{name}.json", result)
    write_json(job.record / "samples.json", lines[:SAMPLES])
    values = metrics | {f"train.{name}": metric for name, metric in train.items()}
    job.metric(0, **{name: metric.value for name, metric in values.items()})
    job.finish(**facts)
    saved.remove()


def _schemas(environments: Environments | None) -> list[dict[str, Any]] | None:
    return environments.schemas if environments else None


def _texts(job: Job) -> dict[str, Path]:
    """Return the corpora by set name."""
    paths = enumerate(job.input_list("corpora"))
    return {f"more.{number - 1}" if number else FIRST: path for number, path in paths}


def _check_text(sets: list[HeldOutText]) -> None:
    """Raise StageError if the first set has no text."""
    if not sets or not sets[0].documents:
        reason = "the corpus has no held-out text: hold out some (corpus.held_out)" if sets else "there is no corpus"
        raise StageError(f"evaluate.bits_per_byte: {reason}; or set `bits_per_byte: null` under `evaluate` to skip it")


def _answers(
    name: str,
    evaluator: EvaluatorSpec,
    chosen: Sequence[Question],
    environments: Environments | None,
    info: ModelInfo,
    model: "EvaluatedModel",
) -> tuple[Answers, str | None, dict[str, Metric]]:
    """Return (completions or conversations, the name of the environment's get_reward, metrics of the turns)."""
    if environments is None:
        return model.completions(name, [question.tokens for question in chosen], evaluator), None, {}
    from baton.tasks.evaluate.conversations import play

    played = play(name, evaluator, chosen, environments, info, model)
    return played, environments.name if environments.owns_reward else None, metrics_of_turns(played)


def _build_tasks(job: Job, spec: EvaluateSpec, info: ModelInfo) -> tuple[dict[str, "Tasks"], dict[str, "Lengths"]]:
    """Return, by evaluator, lm-eval's tasks with all requests rendered, and the lengths of the requests."""
    evaluators = {name: evaluator for name, evaluator in spec.evaluators().items() if evaluator.lm_eval}
    if not evaluators:
        return {}, {}
    from baton.tasks.evaluate.harness import build, load_tasks
    from baton.tasks.evaluate.language_model import Lengths

    loaded = {name: load_tasks(name, evaluator, job.work / "tasks" / name) for name, evaluator in evaluators.items()}
    lengths = {}
    for name, tasks in loaded.items():
        job.progress(0, 1, "tasks", now=f"requests of {name}")
        lengths[name] = Lengths(_no_engine, info, chats=tasks.spec.chat_template)
        lengths[name].measure(build(tasks, lengths[name], spec.seed))
    return loaded, lengths


def _no_engine() -> NoReturn:
    raise AssertionError("requests are measured without an engine")


def _harnessed(
    job: Job, name: str, tasks: "Tasks", info: ModelInfo, model: "EvaluatedModel"
) -> tuple["Harnessed", ThinkingCounts]:
    from baton.tasks.evaluate.harness import run_tasks
    from baton.tasks.evaluate.language_model import VLLMModel

    lm = VLLMModel(
        model.engine,
        info,
        chats=tasks.spec.chat_template,
        seed=model.seed,
        think_end=tasks.spec.think_end,
        answers=model.saved.answer,
        progress=lambda done, total: job.progress(done, total, "requests", now=name),
    )
    return run_tasks(tasks, lm, model.seed), lm.thoughts


def _left_out(counts: Mapping[str, Mapping[str, Any]], info: ModelInfo) -> Iterator[str]:
    """Yield notices about thoughts, and about text beyond the model's positions, which were not scored."""
    for name, count in counts.items():
        if count.get("thoughts"):
            yield f"evaluate.{name}: {in_words(count['thoughts'])}"
        if count.get("too_long"):
            yield (
                f"evaluate.{name}: {count['too_long']} held-out rows were left out: they are longer than "
                f"{info.positions} tokens with max_new_tokens"
            )
        if count.get("truncated"):
            yield (
                f"evaluate.{name}: {count['truncated']} of {count['requests']} requests lost their beginning: they are "
                f"longer than {info.positions} tokens"
            )


def _measured(
    job: Job, spec: EvaluateSpec, scores: dict[str, dict[str, float]], counts: dict[str, dict[str, Any]]
) -> dict[str, str]:
    """Describe the data that bits per byte and each evaluator's metrics were measured on."""
    descriptions = {}
    for text in (scores[name] for name in scores if name == FIRST):
        corpus = f"corpus {job.inputs['corpora.0']['digest'][:12]}"
        descriptions["bits_per_byte"] = f"{text['documents']:,} held-out documents of {corpus} ({size(text['bytes'])})"
    digests = {name: job.inputs[f"rows.{number}"]["digest"][:12] for number, name in enumerate(spec.sets())}
    for name, evaluator in spec.evaluators().items():
        if name in counts and evaluator.data is not None:
            descriptions[name] = f"{counts[name]['asked']:,} rows of data.{evaluator.data} {digests[evaluator.data]}"
            if "train" in counts[name]:
                descriptions[name] += f" and {counts[name]['train']:,} of its training rows"
        else:
            descriptions[name] = f"lm-eval's {', '.join(Path(task).name for task in evaluator.lm_eval)}"
    return descriptions


def _print(metrics: dict[str, Metric], ceiling: dict[str, float]) -> None:
    """Print one line per metric to the log and the terminal."""
    for name, metric in metrics.items():
        reference = f", the rows' own completions {ceiling[name]:.4g}" if name in ceiling else ""
        say(f"{name}: {metric}, n = {metric.count}{reference}")


def _bits(name: str, documents: list[dict[str, Any]]) -> Metric:
    return bits_per_byte([(line["bits"], line["bytes"]) for line in documents if line["set"] == name])


def _scores(held_out: HeldOutText, documents: list[dict[str, Any]]) -> dict[str, float]:
    """Return the counts of a set, and its bits per byte unless it is empty."""
    counts = {
        "documents": len(held_out.documents),
        "bytes": sum(document.bytes for document in held_out.documents),
        "tokens": sum(len(document.tokens) for document in held_out.documents),
    }
    return counts | ({"bits_per_byte": _bits(held_out.name, documents).value} if held_out.documents else {})


def _write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main(work)
