"""End a process together with its launcher, however the launcher ends."""

import os
import signal
import threading
import time

LAUNCHED = {"BATON_LAUNCHED": "1"}  # set for a process whose stdin the launcher holds open


def end_with_launcher(grace_s: float, pipe: int = 0) -> None:
    """If BATON_LAUNCHED is set, stop this process and its group when `pipe`, by default stdin, whose other end the
    launcher holds, is closed: SIGTERM first, so that they can save, SIGKILL after `grace_s`."""
    if not os.environ.get("BATON_LAUNCHED"):
        return

    def watch() -> None:
        while os.read(pipe, 1024):
            pass
        os.killpg(0, signal.SIGTERM)
        time.sleep(grace_s)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
