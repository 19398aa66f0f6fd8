"""Stages that leave this machine: a Flyte connector hands them to SkyPilot's API server as managed jobs.

config.py     Placement: where a stage may run and at what price, and its translation for SkyPilot
task.py       the job that runs a Flyte task elsewhere; how a task is run through the connector from here
connector.py  create, get and delete of a job, as Flyte's connectors have them
"""
