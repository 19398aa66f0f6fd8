"""A process that ends with the one that started it, however that one ends."""

import os
import signal
import threading
import time

LAUNCHED = {"BATON_LAUNCHED": "1"}  # in the environment of a process whose stdin is a lifeline


def end_with_launcher(grace_s: float) -> None:
    """When the launcher dies, so do this process and its group: it holds the other end of our stdin
    (BATON_LAUNCHED says so). SIGTERM first, so that what is worth saving is saved; SIGKILL after `grace_s`."""
    if not os.environ.get("BATON_LAUNCHED"):
        return

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.killpg(0, signal.SIGTERM)
        time.sleep(grace_s)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
