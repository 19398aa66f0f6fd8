"""Check that the files and folders that a recipe names exist."""

from dataclasses import replace
from pathlib import Path

from baton.infra.pod import this_pod
from baton.infra.progress import say_once
from baton.infra.text import clause
from baton.tasks.core.spec import NotSeen, Problem
from baton.workflows.checks.parts import specs_in
from baton.workflows.checks.rows import set_problems
from baton.workflows.checks.run_context import RunContext, is_for_a_cluster


def unusable_paths(context: RunContext) -> list[Problem]:
    """Paths that this machine cannot even look up, so that reading them would fail."""
    problems = []
    for name, spec in specs_in(context.specs):
        for field, path in spec.paths():
            try:
                Path(path).expanduser().exists()
            except (OSError, RuntimeError) as error:  # the name is too long, no permission, ~user without a home folder
                allowed = f"a path that can be looked up: {getattr(error, 'strerror', None) or error}"
                problems.append(Problem(f"{name}.{field}", path, allowed))
    return problems


def files(context: RunContext) -> list[Problem]:
    """Check that the files and folders that the recipe names exist."""
    problems = []
    for name in ("corpus", "tokenizer", "start_from", "init_from"):
        if name in context.specs:
            problems += [problem.under(name) for problem in context.specs[name].missing()]
    for index, corpus in enumerate(context.specs.get("more_corpora", ())):
        problems += [problem.under(f"more_corpora.{index}") for problem in corpus.missing()]
    for name, rows in context.specs.get("data", {}).items():
        problems += [problem.under(f"data.{name}") for problem in set_problems(rows)]
    if this_pod():
        return [_with_fix_for_pods(problem) for problem in problems]
    if not is_for_a_cluster():
        return problems
    for problem in problems:
        if isinstance(problem, NotSeen):  # pods may have credentials for it
            say_once(f"{clause(problem)}. The run's first pod checks it again")
    return [problem for problem in problems if not isinstance(problem, NotSeen)]


def _with_fix_for_pods(problem: Problem) -> Problem:
    """Add a fix for a missing path in a recipe that no client has read, such as one typed in Flyte's console."""
    if isinstance(problem.value, str) and Path(problem.value).is_absolute():
        fix = "A pod reads no other machine's files: name an address (s3://…), or start the run by pyflyte run"
        return replace(problem, allowed=f"{clause(problem.allowed)}. {fix}")
    return problem
