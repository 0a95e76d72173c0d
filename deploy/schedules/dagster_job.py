"""Dagster: the job every night, in UTC. nightly.sh tries again what may pass."""

import subprocess

from dagster import Definitions, GraphDefinition, ScheduleDefinition, op


@op
def run() -> None:
    subprocess.run(["bash", "nightly.sh", "job.yaml"], cwd="/srv/clusters", check=True)


clusters = GraphDefinition("clusters", node_defs=[run]).to_job()
defs = Definitions(schedules=[ScheduleDefinition(job=clusters, cron_schedule="15 2 * * *")])
