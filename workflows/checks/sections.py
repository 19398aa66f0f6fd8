"""Check that the sections of a recipe fit together."""

from collections.abc import Callable, Iterable, Iterator

from baton.tasks.core.spec import Problem, Spec
from baton.tasks.data.curate_spec import EVALUATE, against_evaluation
from baton.tasks.data.spec import CorpusSpec
from baton.workflows.checks.run_context import RunContext
from baton.workflows.dag.post_training import names_problems, rank_problems

# stage: the stage that it needs, and that stage's output
NEEDS = {
    "tokenizer": ("corpus", "the text to train it on, and to tokenize"),
    "shards": ("tokenizer", "the tokenizer that makes the shards"),
    "pretrain": ("shards", "tokenized text"),
    "convert": ("pretrain", "a checkpoint to convert"),
    "init_from": ("pretrain", "the stage that starts from that model"),
}
NEED_A_MODEL = ("evaluate", "post_training", "serve", "publish")
WITH_START_FROM_OFF = ("tokenizer", "shards", "init_from", "pretrain", "convert")


def fields(context: RunContext) -> list[Problem]:
    """Each stage's own problems."""
    parts = [*_parts(context)]
    problems = [problem.under(name) for name, spec in parts for problem in spec.problems()]
    return problems + [problem.under(name) for name, spec in parts for problem in spec.filled_in_problems()]


def _parts(context: RunContext) -> Iterator[tuple[str, Spec]]:
    """(path, spec) of every section, and of every item of a section that is a list or a dictionary."""
    for name, section in context.specs.items():
        if isinstance(section, Spec):
            yield name, section
        elif isinstance(section, dict | list):
            items = section.items() if isinstance(section, dict) else enumerate(section)
            yield from ((f"{name}.{key}", item) for key, item in items)


def order(context: RunContext) -> Iterator[Problem]:
    """Check that each stage's input comes from a stage that is on."""
    if "start_from" in context:
        for stage in WITH_START_FROM_OFF:
            if stage in context:
                yield Problem(stage, "on", "must be left out with start_from, which provides a model and its tokenizer")
        return
    for stage, (before, what) in NEEDS.items():
        if stage in context and before not in context:
            yield Problem(stage, "on", f"needs {before} ({what}); add `{before}:` or leave `{stage}:` out")
    for stage in NEED_A_MODEL:
        if stage in context and "convert" not in context:
            allowed = "needs a model: add `convert:` (with pretrain) or `start_from:`, or leave it out"
            yield Problem(stage, "on", allowed)


def data_sets(context: RunContext) -> list[Problem]:
    """Check that additional corpora are used, and that there is one weight per data set."""
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


def named_rows(context: RunContext) -> Iterator[Problem]:
    """Check that each set of rows that a stage names is defined, and has rows left to train on."""
    sets = context.specs.get("data", {})
    named = {f"{step.path}.data": step.spec.data for step in context.tunings()}
    if "evaluate" in context:
        evaluators = context.specs["evaluate"].evaluators()
        named |= {f"evaluate.{name}.data": spec.data for name, spec in evaluators.items() if spec.data is not None}
    allowed = f"one of {', '.join(sets)}" if sets else "a set of rows: add it under `data:`"
    yield from (Problem(path, name, allowed) for path, name in named.items() if name not in sets)
    for step in context.tunings():
        if (rows := sets.get(step.spec.data)) and rows.held_out == 1 and not rows.documents:
            yield Problem(f"data.{step.spec.data}.held_out", 1.0, f"less than 1: {step.path} trains on the set")


def post_training(context: RunContext) -> list[Problem]:
    """Check that names and starting models are valid, and that there is post-training for `seeds` to repeat."""
    tunings, seeds = context.specs.get("post_training", []), context.specs.get("seeds", 1)
    if seeds > 1 and not tunings:
        return [Problem("seeds", seeds, "1, or add `post_training:`, which `seeds` repeats")]
    return [*names_problems(tunings, context.specs.get("stages", ())), *rank_problems(tunings)]


def documents(context: RunContext) -> list[Problem]:
    """Check that there is a corpus if its documents are read."""
    if "corpus" in context.specs:
        return []
    readers = [f"data.{name}.documents" for name, rows in context.specs.get("data", {}).items() if rows.documents]
    if "evaluate" in context and context.specs["evaluate"].bits_per_byte:
        readers.append("evaluate.bits_per_byte")
    return [
        Problem(path, "on", "needs corpus (the text that it reads); add `corpus:` or leave it out") for path in readers
    ]


def decontamination(context: RunContext) -> Iterator[Problem]:
    """Check that the rows that a corpus is decontaminated against can be prepared before it."""
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
                yield Problem(field, EVALUATE, allowed)
            for name in of_documents:
                yield Problem(field, EVALUATE, f"files: data.{name} is made of the corpus itself (`documents: true`)")


def best(context: RunContext) -> list[Problem]:
    """Check that the metric that selects the published model is measured."""
    best = context.specs["publish"].best if "publish" in context else None
    if best is None:
        return []
    spec = context.specs.get("evaluate")
    names = spec.metrics() if spec else []
    of_lm_eval = [name for name, evaluator in spec.evaluators().items() if evaluator.lm_eval] if spec else []
    if best in names or best.partition(".")[0] in of_lm_eval:  # checked after the base model's evaluation
        return []
    known = [*names, *(f"{name}.<task>.<metric>" for name in of_lm_eval)]
    allowed = f"one of {', '.join(known)}" if known else "null, or add `evaluate:`, which measures it"
    return [Problem("publish.best", best, allowed)]


# the checks that the list of a DAG's calls relies on
FIT: tuple[Callable[[RunContext], Iterable[Problem]], ...] = (order, data_sets, named_rows, post_training, documents)
