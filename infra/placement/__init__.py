"""Stages that leave this machine: a Flyte connector hands them to SkyPilot's API server as managed jobs.

config.py     Placement: where a stage may run and at what price, and its translation for SkyPilot
task.py       a Flyte task that runs here, or where its placement says
connector.py  create, get and delete of a job, as Flyte's connectors have them
job.py        what the job is for SkyPilot: the command, its environment, and what its end means
record.py     what SkyPilot knows of a job, in our words
storage.py    the files that both sides reach;  mirror.py: what a job tells about itself through a bucket
"""
