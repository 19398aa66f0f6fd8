"""Track runs: records are spooled to disk first, then uploaded to MLflow.

Training never waits for MLflow and never fails because of it. A stage writes its record into the spool (`spool.py`); a
thread uploads new records (`uploader.py`, `push.py`); undelivered ones stay in the spool until the next run,
`baton ui`, or `baton tracking sync`. An SQLite store is created by the very first run and
never by a reader (`sqlite.py`, `sqlite_file.py`).

    BATON_HOME/executions/<execution-id>/
        execution.json            one `pyflyte run`: name, recipe, code version, status
        annotations.json          its note and its tags
        used.json                 digests of artifacts whose files it relies on
        alive.lock                held by every process that works on it; its mtime is the last sign of life
        pushed.json               its MLflow run, and what has been uploaded
        delivered                 exists once MLflow has everything
        <stage>/run.json          one stage: params, digests, facts, status, versions
        <stage>/pushed.json       its MLflow run, and the uploaded part of its metrics.jsonl
"""
