"""Move a champion from a separate process: python -m tests.publish.moving NAME VERSION EXPECTED"""

import sys

from baton.tasks.core.job import StageError
from baton.tasks.publish.champion import promote

if __name__ == "__main__":
    name, version, expected = sys.argv[1:]
    try:
        promote(name, int(version), int(expected))
    except StageError as error:
        sys.exit(f"{type(error).__name__}: {error}")
