"""What was run, with what, and what came of it: spooled to disk first, then pushed to MLflow.

Training never waits for MLflow and never fails because of it. A stage writes its record into the
spool (`spool.py`); a thread pushes what is new (`forwarder.py`, `push.py`); what could not be
delivered stays in the spool until the next run, `python -m infra.lineage`, or `python -m infra.tracking sync`.
An SQLite store is made by the first run of all and never by a reader (`sqlite.py`, `sqlite_file.py`).

    BATON_HOME/executions/<execution-id>/
        execution.json            one `pyflyte run`: name, recipe, code version, status
        alive.lock                held by every process that is at work in it; its time is the last sign of life
        pushed.json               the MLflow run it became, and what of it is there
        delivered                 there once MLflow has all of it
        <stage>/run.json          one stage: params, digests, facts, status, versions
        <stage>/pushed.json       its MLflow run, and how far its metrics.jsonl is pushed
"""
