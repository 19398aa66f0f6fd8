"""flytekit without infra/flyte/install.py and hooks.py, with each test in a fresh process. If a test fails, flytekit no
longer needs the hook that its docstring names."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flytekit.core.type_engine import TypeTransformerFailedError
from flytekit.exceptions.user import FlyteRecoverableException, FlyteUserRuntimeException

from baton.infra.errors import UserError
from baton.infra.flyte.hooks import error_text
from tests.s3 import S3
from tests.source import ROOT

MODEL = """
from click import Context
from flytekit.clis.sdk_in_container import run
from flytekit.interaction.click_types import JsonParamType
from pydantic import BaseModel

class Model(BaseModel):
    value: int | str
"""


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_flytekit_reads_yaml_1_1(tmp_path: Path) -> None:
    """See read_own_options."""
    (tmp_path / "model.yaml").write_text("value: 024")
    done = python(f"{MODEL}\nprint(JsonParamType(Model).convert('{tmp_path}/model.yaml', None, None).value)")
    assert done.stdout == "20\n", done.stderr  # 24 in YAML 1.2


def test_flytekit_shows_a_traceback_for_a_broken_file(tmp_path: Path) -> None:
    """See read_own_options."""
    (tmp_path / "model.yaml").write_text("value: [")
    assert "Traceback" in python(f"{MODEL}\nJsonParamType(Model).convert('{tmp_path}/model.yaml', None, None)").stderr


def test_flytekit_ends_in_a_traceback_on_a_damaged_cache(tmp_path: Path) -> None:
    """See use_own_cache."""
    (tmp_path / "cache.db").write_bytes(b"garbage" * 100)
    program = "import flytekit.core.local_cache as module\n"
    program += f"module.CACHE_LOCATION = '{tmp_path}'\nmodule.LocalTaskCache.get('task', '1', None, ())"
    done = python(program)
    assert "DatabaseError" in done.stderr, done.stderr


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="LazyLoader has a lock since Python 3.12")
def test_flytekit_leaves_modules_half_imported_without_a_lock() -> None:
    """See import_lock."""
    program = "import flytekit.core.type_engine, importlib.util, sys, threading\n"
    program += "print(type(sys.modules['pandas']) is importlib.util._LazyModule)"
    assert python(program).stdout == "True\n"


def test_flytekit_sets_a_task_s_type_at_construction_only() -> None:
    """See with_task_type."""
    done = python("from flytekit.core.base_task import Task\nprint(Task.task_type.fset)")
    assert done.stdout == "None\n", done.stderr


def test_flytekit_keeps_the_signal_handlers_of_jobs_that_have_ended() -> None:
    """See job_signal_handlers."""
    program = "from flytekit import FlyteContextManager as manager\nmanager.add_signal_handler(print)\n"
    assert python(
        program + "print(manager.signal_handlers, hasattr(manager, 'remove_signal_handler'))"
    ).stdout.endswith("False\n")


REFUSED = """
from flytekit import FlyteContextManager, task
from flytekit.core.context_manager import ExecutionState
from flytekit.models.literals import Literal, LiteralMap, Scalar
from google.protobuf.struct_pb2 import Struct
from pydantic import BaseModel
from baton.infra.errors import UserError

class Model(BaseModel):
    value: int

    def __init__(self, **values: object) -> None:
        raise UserError("value: of another kind")

    model_validate_json = classmethod(lambda cls, *args, **kwargs: cls())

@task
def work(model: Model) -> None:
    print("working")

def run() -> None:
    context = FlyteContextManager.current_context()
    pod = context.execution_state.with_params(mode=ExecutionState.Mode.TASK_EXECUTION)
    literals = LiteralMap({"model": Literal(scalar=Scalar(generic=Struct()))})
    with FlyteContextManager.with_context(context.with_execution_state(pod)) as inside:
        try:
            work.dispatch_execute(inside, literals)
        except Exception as error:
            print(type(error).__name__, "of", type(error.value).__name__)
"""


def test_flytekit_takes_a_refused_input_for_its_own_fault() -> None:
    """See inputs_are_the_user_s."""
    done = python(f"{REFUSED}\nrun()")
    assert done.stdout.startswith("FlyteNonRecoverableSystemException of "), done.stdout + done.stderr


def test_a_refused_input_is_the_user_s_error() -> None:
    hook = "from baton.infra.flyte.hooks import inputs_are_the_user_s\ninputs_are_the_user_s(work, print)"
    done = python(f"{REFUSED}\n{hook}\nrun()")
    assert done.stdout == "value: of another kind\nFlyteUserRuntimeException of UserError\n", done.stdout + done.stderr


def test_flytekit_shows_the_trace_first() -> None:
    """See sentence_first."""
    done = python("from flytekit.bin.entrypoint import get_traceback_str\nprint(get_traceback_str(ValueError('why')))")
    assert done.stdout.startswith("Trace:"), done.stderr


def test_flyte_shows_a_sentence_a_bug_s_place_and_never_an_input() -> None:
    def raised(error: BaseException) -> BaseException:
        try:
            raise error
        except BaseException as caught:
            return caught

    assert error_text(FlyteUserRuntimeException(UserError("pretrain: why\n  how"))) == "pretrain: why\n  how"
    assert error_text(FlyteRecoverableException("why")) == "why"
    sentence, where = error_text(FlyteUserRuntimeException(raised(ValueError("why")))).splitlines()
    assert sentence == "ValueError: why" and where.endswith("in raised: raise error")
    failed = TypeTransformerFailedError("Error converting input 'recipe': Literal value: ...")
    failed.__context__ = UserError("why")
    assert error_text(failed) == "why"
    long = error_text(UserError("\n".join(map(str, range(100))))).splitlines()
    assert (len(long), long[0], long[-1]) == (10, "0", "99")


PRESSED = """
import atexit, os, signal, time
import flytekit
{hook}
atexit.register(time.sleep, 1)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("hooked", [True, False])
def test_three_quick_interrupts_end_with_a_traceback_but_for_the_hook(hooked: bool) -> None:
    """See interrupts_end_quietly."""
    hook = "from baton.infra.flyte.install import interrupts_end_quietly; interrupts_end_quietly()" if hooked else ""
    command = [sys.executable, "-c", PRESSED.format(hook=hook)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None and started.stdout.readline() == "ready\n"
        for _ in range(3):
            started.send_signal(signal.SIGINT)
            time.sleep(0.2)
        _, output = started.communicate(timeout=60)
    assert started.returncode == 1 or not hooked
    assert ("Traceback" in output) != hooked, output


SENT = """
import sys
from flytekit import FlyteContextManager
from flytekit.extend.backend.base_connector import local_connector_loop
access = FlyteContextManager.current_context().file_access
access.put_data(__file__, sys.argv[1])
local_connector_loop.run_until_complete(access.async_put_data(__file__, sys.argv[1]))
{hook}
"""


@pytest.mark.parametrize("hooked", [True, False])
def test_flytekit_leaves_sessions_open(s3: S3, tmp_path: Path, hooked: bool) -> None:
    """See quiet_s3."""
    hook = "from baton.infra.flyte.hooks import quiet_s3; quiet_s3()" if hooked else ""
    (program := tmp_path / "program.py").write_text(SENT.format(hook=hook))
    words = [sys.executable, str(program), f"{s3.address}/sent"]
    environment = os.environ | s3.environment() | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert ("Unclosed client session" in ended.stderr) != hooked
