"""Keep this process's tracebacks: SkyPilot turns them off for all of Python when it raises an error.

Its `print_exception_no_traceback` sets `sys.tracebacklimit` to 0, which only an exit without an error restores: after
one refused request, all later messages of this process lacked their lines of code. Import this with SkyPilot.
tests/placement/test_tracebacks.py fails when a release restores the limit itself; delete this then.
"""

import contextlib

from sky.utils import ux_utils

ux_utils.print_exception_no_traceback = contextlib.nullcontext  # type: ignore[assignment]
