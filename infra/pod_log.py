"""A pod's log without what flytekit 1.16 says at its end: it leaves its sessions with S3 open, and each is logged as an
error when the interpreter ends. It can go when flytekit closes them (tests/stage/test_pod_log.py).
"""

import logging
import os

from flytekit.loggers import set_flytekit_log_properties

LEVEL = "FLYTE_SDK_LOGGING_LEVEL"
# of the process that fetches the code, in which nothing of ours is loaded; errors end it with a traceback
ENVIRONMENT = {LEVEL: str(logging.CRITICAL)}


class _WithoutSessions(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        return "Unclosed client session" not in said and "Unclosed connector" not in said


def quiet_end() -> None:
    """Where that environment is: from here on all is logged as ever, but for open sessions."""
    if os.environ.get(LEVEL) == ENVIRONMENT[LEVEL]:
        set_flytekit_log_properties(filter=_WithoutSessions(), level=logging.WARNING)
