"""Run stages on other machines: a Flyte connector submits them to SkyPilot's API server as managed jobs.

config.py     Placement: where a stage may run and at what price, and its translation for SkyPilot
task.py       a Flyte task that runs here, or where its placement says
connector.py  Flyte's create, get and delete for a job
job.py        the SkyPilot job: command, environment, exit codes
record.py     place, price and limits of a job, from SkyPilot's record
storage.py    files shared by both sides;  mirror.py: a running job's record, metrics and log, through a bucket
"""
