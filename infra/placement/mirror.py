"""What a job writes into a bucket while it runs, brought to this machine: its stage's record, metrics and log."""

import json
from pathlib import Path

from flytekit import FlyteContextManager

from infra.durable import write_json
from infra.home import baton_home
from infra.placement.storage import is_bucket

FILES = ("metrics.jsonl", "progress.json", "log.txt")


def mirror(storage: str, execution: Path, job: str) -> None:
    """Bring what is new of a job. Nothing to do where both sides write into the same folder."""
    if not is_bucket(storage):
        return
    files = FlyteContextManager.current_context().file_access.get_filesystem_for_path(storage)
    for path in files.glob(f"{storage}/executions/{execution.name}/*/run.json"):
        run = json.loads(files.cat_file(path))
        if run["placed"].get("job") != job:
            continue
        name = Path(run["job_dir"]).name
        here = baton_home() / "jobs" / name
        here.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            if files.exists(there := f"{storage}/jobs/{name}/{file}"):
                # a new file each time: a resumed engine rewrites its metrics, and whoever reads on would read amiss
                files.get_file(there, str(here / f"{file}.partial"))
                (here / f"{file}.partial").replace(here / file)
        stage = execution / Path(path).parent.name
        stage.mkdir(parents=True, exist_ok=True)
        write_json(stage / "run.json", run | {"job_dir": str(here)})
