"""Print the output of `baton plan` with SkyPilot's catalogs, for several recipes in one separate
process, since loading SkyPilot takes seconds.

python -m tests.workflows.priced FOLDER prints the exit code and the output for each FOLDER/<name>.yaml, as JSON.

Run it in a HOME with catalogs. `nowhere.yaml` is planned before any cloud is enabled, the other recipes afterwards.
"""

import contextlib
import io
import json
import sys
from pathlib import Path

from sky import check, global_user_state
from sky.clouds.cloud import CloudCapability

from baton.workflows.plan.command import main


def enable(*clouds: str) -> None:
    """Write the file that `sky check` would write."""
    global_user_state.initialize_and_get_db()
    global_user_state.set_allowed_clouds(check._get_workspace_allowed_clouds("default"), "default")
    for capability in (CloudCapability.COMPUTE, CloudCapability.STORAGE):
        global_user_state.set_enabled_clouds(list(clouds), capability, "default")


def planned(recipe: Path, *more: str) -> tuple[int, str]:
    """Plan a recipe, and return the exit code and the output."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            main([str(recipe), *more])
        except SystemExit as end:
            return int(end.code or 0), output.getvalue()
    raise AssertionError("main did not exit")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    found = {"nowhere": planned(folder / "nowhere.yaml")}
    enable("AWS", "Lambda", "RunPod")
    for path in sorted(folder.glob("*.yaml")):
        if path.stem != "nowhere":
            found[path.stem] = planned(path)
            found[f"{path.stem} --json"] = planned(path, "--json")
    found["dear --mfu 0.8"] = planned(folder / "dear.yaml", "--mfu", "0.8")
    print(json.dumps(found))
