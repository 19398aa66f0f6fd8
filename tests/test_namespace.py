"""All code is imported under `baton`, and none of it twice: in the clone, by pyflyte, and from a wheel."""

import ast
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.source import HOUSE, ROOT, files

FOLDERS = set(HOUSE) - {"baton", "tests"}


def ran(*words: str, cwd: Path, **environment: str) -> str:
    """Return what a process printed that found nothing by PYTHONPATH."""
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "BATON_HOME")} | environment
    done = subprocess.run(words, cwd=cwd, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_file_imports_a_folder_without_the_namespace() -> None:
    for path in files("baton", *FOLDERS, "tests"):
        if path.is_relative_to(ROOT / "baton") and path.parent != ROOT / "baton":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not {name.split(".")[0] for name in names} & FOLDERS, f"{path}:{getattr(node, 'lineno', 0)}"


def test_a_module_that_pyflyte_imports_by_its_folder_is_that_of_the_namespace() -> None:
    program = (
        "import sys, workflows.pretrain_to_rl as short, baton.workflows.pretrain_to_rl as own\n"
        "twice = [name for name in sys.modules if name.startswith('workflows.') and "
        "sys.modules[name] is not sys.modules[f'baton.{name}']]\n"
        "print(short is own, own.__spec__.name, twice)"
    )
    assert ran(sys.executable, "-c", program, cwd=ROOT) == "True baton.workflows.pretrain_to_rl []\n"


# A wheel


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment with the wheel, and with the packages of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    uv = str(Path(sys.executable).with_name("uv"))
    ran(uv, "build", "--quiet", "--wheel", "--out-dir", str(folder), str(ROOT), cwd=folder)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv")
    found = folder / "venv/bin/python"
    ran(uv, "pip", "install", "--quiet", "--no-deps", "--python", str(found), str(wheel), cwd=folder)
    (site,) = (folder / "venv/lib").glob("*/site-packages")
    (here,) = Path(sys.prefix, "lib").glob("*/site-packages")
    (site / "packages.pth").write_text(f"{here}\n")
    pyflyte = found.with_name("pyflyte")
    pyflyte.write_text(f"#!{found}\nfrom flytekit.clis.sdk_in_container.pyflyte import main\n\nmain()\n")
    pyflyte.chmod(0o755)
    with zipfile.ZipFile(wheel) as archive:
        (folder / "names").write_text("\n".join(archive.namelist()))
    return str(found)


def baton(python: str) -> str:
    return str(Path(python).with_name("baton"))


@pytest.fixture
def project(tmp_path: Path, python: str) -> Path:
    """A project whose packages and modules have the names of ours and of Python's."""
    ran(baton(python), "init", "rl", str(tmp_path), cwd=tmp_path)
    for name in FOLDERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("HELP = 'mine'\n")
    (tmp_path / "numbers.py").write_text("THREE = 3\n")
    text = (tmp_path / "task.py").read_text()
    (tmp_path / "task.py").write_text(f"from tasks import HELP as _mine\n{text}\nassert _mine == 'mine'\n")
    return tmp_path


@pytest.mark.long
def test_a_wheel_has_one_top_level_name_and_no_secret_or_test(python: str) -> None:
    names = Path(python).parents[2].joinpath("names").read_text().splitlines()
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {"baton"}
    assert {"baton/tasks/pages/style.css", "baton/images/train.txt", "baton/workflows/starters/rl/baton.toml"} <= {
        *names
    }
    assert not [name for name in names if "test" in name.split("/")[1] or name.endswith((".env", "compose.yaml"))]


@pytest.mark.long
def test_the_code_that_a_rented_machine_gets_is_that_of_a_clone(python: str, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from baton.infra.flyte.placed_run import _as_in_a_clone\n"
        "print(_as_in_a_clone(Path(sys.argv[1])))"
    )
    code = Path(ran(python, "-c", program, str(tmp_path), cwd=tmp_path).strip())
    assert {path.name for path in code.iterdir()} == {"baton", "images", "infra", "tasks", "workflows"}
    assert ran(sys.executable, "-c", "import baton.tasks.stage as it; print(it.__file__)", cwd=code).startswith(
        str(code)
    )


@pytest.mark.long
def test_a_project_with_packages_of_the_same_names_plans_and_runs(project: Path, python: str) -> None:
    below = project / "tasks"
    assert "no problem found" in ran(baton(python), "plan", cwd=below)
    printed = ran(
        baton(python), "run", "-v", "--smoke", "--set", "post_training=[]", "--set", "audit=null",
        "--set", "publish=null", cwd=below, HF_HUB_OFFLINE="1",
    )  # fmt: skip
    assert "report" in printed
    assert (project / ".baton/jobs").is_dir() and not (below / ".baton").exists()
