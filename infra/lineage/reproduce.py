"""Commands that reproduce an execution from the recorded code, command and recipe."""

import math
import re
import shlex
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from baton.infra.lineage.facts import DEEPEST, json_or
from baton.infra.tracking.flatten import names_of
from baton.infra.tracking.mlflow_records import CODE_TAGS, RECIPE_TAG, REPOSITORY_TAG, joined_text
from baton.infra.tracking.redact import SETUP_DIGEST, redact, redact_code

COMMIT = re.compile(r"[0-9a-f]{7,64}")
RECIPE, DIFF = "recipe.json", "repository.diff"
LAUNCH_PLANS, RECIPE_VARIABLE = "launch_plans.py", "BATON_CONTINUOUS"  # its command names no recipe
CONTINUOUS = (LAUNCH_PLANS, "continuous.py")
POD_COMMANDS = ("pyflyte-execute", "pyflyte-fast-execute")  # in the first pod of an execution on a cluster
FIRST_TASKS = {  # module and task of the first pod -> the file and workflow that a client runs
    ("workflows.pretrain_to_rl", "stages"): ("workflows/pretrain_to_rl.py", "pretrain_to_rl"),
    ("workflows.continuous", "ingest"): ("workflows/continuous.py", "continue_training"),
    ("workflows.continuous", "refresh"): ("workflows/continuous.py", "refresh_rl"),
}
WORKFLOWS = ("pretrain_to_rl.py", *CONTINUOUS)  # Baton's own files
CONTINUES = (
    "# continues from the generations in the registry, on the source's current text; an empty registry starts anew"
)


def code(tags: dict[str, str]) -> dict[str, str]:
    """{"commit", "dirty", "diff", "archive"}, as far as they are known."""
    return {name: tags[key] for name, key in CODE_TAGS.items() if tags.get(key)}


def repository(tags: dict[str, str]) -> dict[str, str]:
    """The user's repository (infra/tracking/repository.py), as far as its facts are known."""
    names = ("origin", "commit", "path", "digest", "untracked")
    facts = {name: tags[f"{REPOSITORY_TAG}{name}"] for name in names if tags.get(f"{REPOSITORY_TAG}{name}")}
    diff = joined_text(f"{REPOSITORY_TAG}diff.", tags)
    return facts | ({"diff": diff} if diff else {})


def commands(tags: dict[str, str], execution: str) -> list[str]:
    """Shell commands that repeat an execution; `{base}` stands for the address of these pages."""
    words = _words(tags.get("mlflow.source.name", ""))
    if not words:
        return []
    words[0] = Path(words[0]).name
    if words[0] in POD_COMMANDS:
        words = _local_command(words)
    for number, word in enumerate(words):
        if word.startswith("--recipe="):
            words[number : number + 1] = ["--recipe", RECIPE]
        elif number and words[number - 1] == "--recipe":
            words[number] = RECIPE
        elif word.startswith("/") and word.rpartition("/workflows/")[2] in WORKFLOWS:  # a file of the checkout
            words[number] = f"workflows/{Path(word).name}"
    files = {Path(word).name for word in words}
    if LAUNCH_PLANS in files:
        words.insert(0, f"{RECIPE_VARIABLE}={RECIPE}")
    path = repository(tags).get("path", ".")
    lines = [*_checkout(tags, execution), ". .venv/bin/activate", *([f"cd {shlex.quote(path)}"] if path != "." else [])]
    if RECIPE in words or LAUNCH_PLANS in files:
        lines.append(f"curl -fsS -o {RECIPE} {{base}}/executions/{execution}/{RECIPE}")
    return [*lines, *([CONTINUES] if files & {*CONTINUOUS} else []), shlex.join(words)]


def _local_command(words: list[str]) -> list[str]:
    """The command of a local run in place of a pod's, which needs the bucket's keys and would overwrite the recorded
    outputs. For a user's own file, WORKFLOW stands for the workflow's name, which a pod's command does not contain."""
    options = dict(pairwise(words))
    module, task = options.get("task-module", ""), options.get("task-name", "")
    module = module.removeprefix("baton.")  # records of earlier versions lack it
    file, workflow = FIRST_TASKS.get((module, task), (f"{module.replace('.', '/')}.py", "WORKFLOW"))
    return ["pyflyte", "run", file, workflow, "--recipe", RECIPE]


def _checkout(tags: dict[str, str], execution: str) -> list[str]:
    """The commands that restore the user's repository, with Baton's commit if that is another repository."""
    user, baton = repository(tags), code(tags)
    known = bool(COMMIT.fullmatch(baton.get("commit", "")))  # in a pod it may be the name of an archive of code
    if "commit" not in user:
        changed = [f"# plus uncommitted changes, not recorded (digest {baton['diff'][:12]})"] if "diff" in baton else []
        return [f"git checkout {baton['commit']}", *changed] if known else changed
    lines = [f"# Baton's own commit: {baton['commit']}"] if known and user["commit"] != baton["commit"] else []
    if origin := user.get("origin"):
        lines += [f"git clone {shlex.quote(origin)}", f"cd {shlex.quote(Path(origin).name.removesuffix('.git'))}"]
    lines.append(f"git checkout {user['commit']}")
    if "diff" in user:
        lines.append(f"curl -fsS {{base}}/executions/{execution}/{DIFF} | git apply")
    if untracked := user.get("untracked"):
        lines.append(f"# {untracked} untracked files or folders existed; they are not recorded")
    return lines


def full_recipe(tags: dict[str, str], params: dict[str, str]) -> Any:
    """The recipe of an execution with the source of its functions, as `--recipe` accepts it; a very long recipe lacks
    that source."""
    recorded = json_or(joined_text(RECIPE_TAG, tags)) or recipe(params)
    return redact(_without_digests(recorded), code=partial(redact_code, literals=True))


def _without_digests(value: Any) -> Any:
    """Remove the digests in place of placements' setups, which are not recorded."""
    if isinstance(value, dict):
        return {name: _without_digests(item) for name, item in value.items() if name != SETUP_DIGEST}
    return [_without_digests(item) for item in value] if isinstance(value, list) else value


def recipe(params: dict[str, str]) -> dict[str, Any]:
    """A nested recipe from MLflow's flat parameters; a value that is not JSON is text."""
    nested: dict[str, Any] = {}
    for key, value in params.items():
        *parents, last = (names_of(key) if key.count(".") < DEEPEST else []) or [key]
        at = nested
        for parent in parents:
            inner = at.setdefault(parent, {})
            at = inner if isinstance(inner, dict) else {}  # a name that itself has a dot: only this field is lost
        at[last] = _value(value)
    return nested


def _value(text: str) -> Any:
    parsed = json_or(text, text)
    return text if isinstance(parsed, float) and not math.isfinite(parsed) else parsed


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an open quote: the end of a long one is cut
        return command.split()
