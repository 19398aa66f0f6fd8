"""SkyPilot's SDK, which this process imports from here, with the one change that Baton makes to it.

SkyPilot turns tracebacks off for all of Python when it raises an error: its `print_exception_no_traceback` sets
`sys.tracebacklimit` to 0, which only an exit without an error restores. After one refused request, all later messages
of this process lacked their lines of code. Written for SkyPilot 0.14.1; tests/placement/test_tracebacks.py fails when a
release restores the limit itself.
"""

import contextlib

import sky
from sky.utils import ux_utils

__all__ = ["sky"]

ux_utils.print_exception_no_traceback = contextlib.nullcontext  # type: ignore[assignment]
