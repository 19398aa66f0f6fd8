"""`python -m infra.tracking status` says what waits in the spool; `… sync` delivers it."""

import sys
from pathlib import Path

from infra.tracking.spool import executions, is_alive, is_delivered, read_execution, settle
from infra.tracking.store import PushFailed, prepare_client, shown_uri, tracking_hint

USAGE = "usage: python -m infra.tracking status|sync"


def status() -> int:
    """Print where the runs are and which executions wait; 0."""
    print(f"store    {shown_uri()}\nlook     {tracking_hint()}")
    waiting = _waiting()
    print(f"waiting  {len(waiting)} of {len(executions())} executions")
    for folder in waiting:
        execution = read_execution(folder)
        state = "at work" if is_alive(folder) else execution.status
        print(f"  {execution.id}  {execution.name}  {state}")
    return 0


def sync() -> int:
    """Deliver every execution that waits; those at work deliver themselves. 0 when nothing waits any more, else 1."""
    prepare_client()
    from infra.tracking.push import push_execution  # imports MLflow

    failures = 0
    for folder in _waiting():
        if not settle(folder):
            print(f"{folder.name}: at work; it delivers itself")
            continue
        try:
            delivered = push_execution(folder)
        except PushFailed as error:
            print(f"{folder.name}: {error}", file=sys.stderr)
            failures += 1
        else:
            print(f"{folder.name}: {'delivered' if delivered else 'another process is delivering it'}")
    if failures:
        print(f"{failures} executions still wait for {shown_uri()}", file=sys.stderr)
    return 1 if failures else 0


def _waiting() -> list[Path]:
    return [folder for folder in executions() if not is_delivered(folder)]


COMMANDS = {"status": status, "sync": sync}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in COMMANDS:
        sys.exit(USAGE)
    sys.exit(COMMANDS[sys.argv[1]]())
