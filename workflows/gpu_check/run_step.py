"""Run one step in its own process: `python -m baton.workflows.gpu_check.run_step FOLDER STEP`.

Writes the step's outcome.json; if there is none, the process was killed.
"""

import json
import os
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from baton.infra.paths import quiet
from baton.infra.process.launch import STOP_GRACE, EngineFailed, sigterm_as_exit
from baton.infra.process.parent_watchdog import end_with_launcher
from baton.infra.storage.durable import write_json
from baton.workflows.gpu_check.machine import Machine
from baton.workflows.gpu_check.sizes import SIZES
from baton.workflows.gpu_check.step import CannotBeTried, Check, CheckFailed, Result
from baton.workflows.gpu_check.steps import STEPS

STOP_S = 10.0  # grace for an engine to stop: it has nothing to save
OUTCOME = "outcome.json"


def main() -> None:
    folder, name = Path(sys.argv[1]), sys.argv[2]
    quiet()
    os.environ[STOP_GRACE] = str(STOP_S)
    end_with_launcher(2 * STOP_S)
    identity = json.loads((folder / "check.json").read_text())
    check = Check(name, folder, SIZES[identity["size"]], TypeAdapter(Machine).validate_python(identity["machine"]))
    step = next(step for step in STEPS if step.name == name)
    with sigterm_as_exit():
        try:
            step.work(check)
            result = Result("pass", figures=check.figures)
        except CannotBeTried as reason:
            result = Result("cannot be tried", str(reason), check.figures)
        except (CheckFailed, EngineFailed) as error:
            result = Result("fail", str(error), check.figures)
        except Exception as error:
            traceback.print_exc()
            result = Result("fail", f"{type(error).__name__}: {error}", check.figures)
    write_json(check.own / OUTCOME, asdict(result))


if __name__ == "__main__":
    main()
