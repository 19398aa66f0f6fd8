"""All imports of the stages of an image succeed with the packages of its list alone. Other packages that are installed
here (images/gpu.txt) are hidden."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.source import ROOT, closure, files, imports, module_name, third_party

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="the images' lists are for Python 3.12")


def modules(family: str) -> list[str]:
    """Return the modules of a family's stages, followed by the modules of other projects that these import."""
    word = f"image=images.{family.upper().replace('-', '_')}"
    tasks = [path for path in files("tasks") if path.name == "task.py" and word in path.read_text()]
    ours = closure(*(path for task in tasks for path in task.parent.rglob("*.py")))
    named = {(name, path) for path in ours for name in imports(path)}
    # SkyPilot only sends stages to other machines, which do not send them on
    theirs = {name for name, path in named if name.split(".")[0] in third_party(path) - {"sky"}}
    return [*sorted(map(module_name, ours)), *sorted(filter(is_module, theirs))]


def is_module(name: str) -> bool:
    """Return whether a name is a module, and not a function or class, which `from a import b` may name too."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is not a module
        return False
    except ValueError:  # it is loaded without a spec, as are modules of Cython
        return True


@pytest.mark.parametrize(
    ("family", "engines"),
    [
        ("data", {"tokenizers", "pyarrow", "baton.tasks.data.shards"}),
        ("train", {"megatron.core.models.gpt.gpt_model", "baton.tasks.pretrain.train", "baton.tasks.convert.export"}),
        ("serve", {"vllm", "lm_eval", "baton.tasks.vllm.engine"}),
        (
            "post-train",
            {"vllm", "trl", "baton.tasks.posttrain.methods.grpo.trainer", "baton.tasks.posttrain.methods.sft"},
        ),
    ],
)
def test_an_image_can_import_all_that_its_stages_import(family: str, engines: set[str]) -> None:
    expected = modules(family)
    assert engines <= {*expected}
    words = [sys.executable, "-W", "ignore", "-m", "tests.images.only", f"images/{family}.txt", *expected]
    ended = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    assert not [line for line in ended.stdout.splitlines() if not line.endswith("No module named 'sky'")]
