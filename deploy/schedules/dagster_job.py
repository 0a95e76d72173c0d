"""Dagster: the job every night, in UTC. nightly.sh tries again what may pass."""

import subprocess

from dagster import Definitions, ScheduleDefinition, job, op


@op
def run() -> None:
    subprocess.run(["bash", "nightly.sh", "job.yaml"], cwd="/srv/clusters", check=True)


@job
def clusters() -> None:
    run()


defs = Definitions(schedules=[ScheduleDefinition(job=clusters, cron_schedule="15 2 * * *")])
