"""Mirror a running job's record, metrics and log from a bucket to this machine."""

import json
from pathlib import Path

from flytekit import FlyteContextManager

from infra.paths import baton_home
from infra.progress import NOTICES
from infra.storage.buckets import is_bucket
from infra.storage.durable import write_json

FILES = ("metrics.jsonl", "progress.json", NOTICES, "log.txt")


def mirror(storage: str, execution: Path, job: str) -> None:
    """Copy what is new of a job. Does nothing if both sides share a folder."""
    if not is_bucket(storage):
        return
    files = FlyteContextManager.current_context().file_access.get_filesystem_for_path(storage)
    for path in files.glob(f"{storage}/executions/{execution.name}/*/run.json"):
        run = json.loads(files.cat_file(path))
        if run["placed"].get("job") != job:
            continue
        name = Path(run["job_dir"]).name
        job_dir = baton_home() / "jobs" / name
        job_dir.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            if files.exists(source := f"{storage}/jobs/{name}/{file}"):
                # a new file each time: a resumed engine rewrites its metrics, and a reader's offset would be wrong
                files.get_file(source, str(job_dir / f"{file}.partial"))
                (job_dir / f"{file}.partial").replace(job_dir / file)
        stage = execution / Path(path).parent.name
        stage.mkdir(parents=True, exist_ok=True)
        write_json(stage / "run.json", run | {"job_dir": str(job_dir)})
