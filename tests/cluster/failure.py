"""The failure of a node's attempt, and whether Flyte retries it."""

MOST_SYSTEM_FAILURES = 3  # max-node-retries-system-failures


class Failed(Exception):
    """A node or one attempt at it: `system` is the cluster's fault, else it is the user's."""

    def __init__(self, message: str, *, recoverable: bool, system: bool = False) -> None:
        super().__init__(message)
        self.recoverable, self.system = recoverable, system


class Retries:
    """User errors are retried `retries` times where they are recoverable; system errors whatever `retries` says."""

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
