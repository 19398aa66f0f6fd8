"""The failure of an attempt at a node, and the decision whether Flyte retries it."""

MOST_SYSTEM_FAILURES = 3  # max-node-retries-system-failures in Flyte


class Failed(Exception):
    """A node or an attempt failed; `system` means that the cluster caused the failure, and not the user."""

    def __init__(self, message: str, *, recoverable: bool, system: bool = False) -> None:
        super().__init__(message)
        self.recoverable, self.system = recoverable, system


class Retries:
    """The retries that are left: recoverable user errors have `retries` of them, system errors have a limit of their
    own."""

    def __init__(self, retries: int) -> None:
        self._retries, self._user, self._system = retries, 0, 0

    def again(self, failed: Failed) -> bool:
        if not failed.recoverable:
            return False
        if failed.system:
            self._system += 1
            return self._system < MOST_SYSTEM_FAILURES
        self._user += 1
        return self._user <= self._retries
