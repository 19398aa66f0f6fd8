"""Baton's uses of flytekit 1.16's internals for single tasks or calls; infra/flyte/install.py has the changes for the
process.

tests/infra/test_flyte_hooks.py (and tests/stage/test_pod_log.py) fails for a hook that is no longer needed. flytekit is
imported in the functions, since engines and the tracking thread use this module without it.
"""

import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from baton.infra.errors import UserError, sentence
from baton.infra.tracking.redact import redact_text

T = TypeVar("T")

MOST_LINES = 10  # lines that Flyte shows for a failed task
MOST_FRAMES = 5  # stack frames in them, for a bug

LOG_LEVEL = "FLYTE_SDK_LOGGING_LEVEL"
# For the process that fetches the code, before any of our code is loaded; errors still end it with a traceback
POD_ENVIRONMENT = {LOG_LEVEL: str(logging.CRITICAL)}


class _WithoutSessions(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return "Unclosed client session" not in message and "Unclosed connector" not in message


WITHOUT_SESSIONS = _WithoutSessions()


def quiet_s3() -> None:
    """Prevent aiobotocore from printing where it found credentials, and aiohttp from reporting sessions at exit.
    flytekit makes asynchronous file systems, whose sessions s3fs leaves to its caller, and after Ctrl-C their event
    loops may have ended, so that the sessions cannot be closed. They end with the process."""
    logging.getLogger("aiobotocore").setLevel(logging.WARNING)
    logging.getLogger("asyncio").addFilter(WITHOUT_SESSIONS)


def error_text(error: BaseException) -> str:
    """Return an error's message, with its place in the code if it is not one of our named errors."""
    from flytekit.exceptions.user import FlyteRecoverableException

    error = _unwrapped(error)
    if isinstance(error, FlyteRecoverableException):
        return shortened(redact_text(", ".join(map(str, error.args))))
    if isinstance(error, UserError):
        return shortened(redact_text(error.message))
    print(redact_text("".join(traceback.format_exception(error))), file=sys.stderr)
    frames = traceback.extract_tb(error.__traceback__)[-MOST_FRAMES:]
    where = [f"  {frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}" for frame in frames]
    return "\n".join([shortened(redact_text(sentence(error)), MOST_LINES - len(where)), *where])


def _unwrapped(error: BaseException) -> BaseException:
    """Return the error in flytekit's wrappers."""
    from flytekit.core.type_engine import TypeTransformerFailedError

    error = getattr(error, "value", error)
    while isinstance(error, TypeTransformerFailedError) and (inner := error.__cause__ or error.__context__):
        error = inner
    return error


def inputs_are_the_user_s(task: Any, record: Callable[[UserError], object]) -> None:
    """Turn an input that one of our models rejects into a user error, which is first passed to `record`. For flytekit
    it is a system error, and none of the task's own code runs."""
    dispatch = task.dispatch_execute

    def dispatch_execute(*args: Any, **kwargs: Any) -> Any:
        from flytekit.exceptions.system import FlyteNonRecoverableSystemException
        from flytekit.exceptions.user import FlyteUserRuntimeException

        try:
            return dispatch(*args, **kwargs)
        except FlyteNonRecoverableSystemException as error:
            refused = _unwrapped(error)
            if not isinstance(refused, UserError):
                raise
            record(refused)
            raise FlyteUserRuntimeException(refused) from error

    task.dispatch_execute = dispatch_execute


def shortened(text: str, most: int = MOST_LINES) -> str:
    """Return the first and the last lines of a long text."""
    lines = text.splitlines()
    if len(lines) <= most:
        return text
    first = most // 2
    last = most - first - 1
    return "\n".join([*lines[:first], f"  … {len(lines) - first - last} lines, see the pod's log …", *lines[-last:]])


def import_lock() -> AbstractContextManager[object]:
    """Return the lock to hold while importing MLflow. flytekit loads pandas and pyarrow with importlib's LazyLoader,
    which has no lock before Python 3.12, and inspects them whenever it converts a value. If another thread imported
    them at that moment, as MLflow does, it would find them without their classes. Two threads that import MLflow at the
    same time also fail."""
    engine = sys.modules.get("flytekit.core.type_engine")
    lock: AbstractContextManager[object] = engine.TypeEngine.lazy_import_lock if engine else nullcontext()
    return lock


def one_at_a_time() -> Any:
    """Return the policy of a launch plan whose run is skipped while an earlier run is in progress."""
    from flytekit.models.concurrency import ConcurrencyLimitBehavior, ConcurrencyPolicy

    return ConcurrencyPolicy(1, ConcurrencyLimitBehavior.SKIP)


def ignored_outputs(reason: str) -> Exception:
    """Return the exception for a task whose outputs another node's process returns."""
    from flytekit.core.base_task import IgnoreOutputs

    ignored: Exception = IgnoreOutputs(reason)
    return ignored


def retried_by_flyte(error: Exception) -> Exception:
    """Return the exception that a task raises instead of an error, so that Flyte retries it."""
    from flytekit.exceptions.user import FlyteRecoverableException

    recoverable: Exception = FlyteRecoverableException(str(error))
    return recoverable


def add_deck(title: str, page: str) -> None:
    """Add HTML to the running task's page in Flyte's console."""
    from flytekit import Deck, current_context

    current_context().decks.append(Deck(title, page))


def with_task_type(task: T, task_type: str) -> T:
    """Change a task's type, which flytekit sets only at construction."""
    task._task_type = task_type  # type: ignore[attr-defined]
    return task


@contextmanager
def job_signal_handlers() -> Iterator[None]:
    """Drop the signal handlers that connectors add in the body, since flytekit keeps those of jobs that have ended."""
    from flytekit import FlyteContextManager

    handlers: list[Callable[..., Any]] = FlyteContextManager.signal_handlers
    count = len(handlers)
    try:
        yield
    finally:
        del handlers[count:]
