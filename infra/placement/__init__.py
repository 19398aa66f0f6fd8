"""Run stages on other machines, as SkyPilot's managed jobs. A Flyte connector submits them (infra/flyte/connector.py).

config.py     Placement: where a stage may run and at what price, and its translation for SkyPilot
job.py        the SkyPilot job: command, environment, exit codes
record.py     place, price and limits of a job, from SkyPilot's record
mirror.py     a running job's record, metrics and log, through a bucket
"""
