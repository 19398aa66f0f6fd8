"""Run stages on other machines, as SkyPilot's managed jobs. A Flyte connector submits them (infra/flyte/connector.py).

config.py     Placement: where a stage may run and at what price, and its translation for SkyPilot
job.py        the SkyPilot job: command, environment, exit codes
machine.py    on the job's machines: counting faults, and ending all machines when the stage fails on one
mirror.py     a running job's record, metrics, progress and log, through a bucket
prices.py     the places that a job tries, in their order, with their prices
record.py     place, price and limits of a job, from SkyPilot's record
waiting.py    the reason why a job still waits for machines
failure.py    the description of a failed job in a few lines
api_server.py calls to SkyPilot's API server
skypilot.py   SkyPilot's SDK, with one change of ours

A job with a bucket as its storage is like a Flyte pod: nothing is mounted, and its home is lost with the machine. In
the storage, it uses

    STORAGE/jobs/<job directory>/                         checkpoints and logs (tasks/core/offsite.py), progress
    STORAGE/artifacts/<identity>/                         results (tasks/core/stored.py)
    STORAGE/executions/<execution>/<job>/<stage>/run.json records (mirror.py)
    STORAGE/placed/<attempt>/faults/, hello/, answer/, <round>/   coordination of a job's machines (machine.py)
    STORAGE/code/<digest>.tar.gz                          this checkout's code
    STORAGE/flyte/                                        Flyte's inputs and outputs
"""
