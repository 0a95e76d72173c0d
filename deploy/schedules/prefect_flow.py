"""Prefect 3: python prefect_flow.py stays, and starts the job every night, in UTC."""

import subprocess

from prefect import flow


@flow(timeout_seconds=12 * 3600)
def clusters() -> None:
    subprocess.run(["bash", "nightly.sh", "job.yaml"], cwd="/srv/clusters", check=True)


if __name__ == "__main__":
    clusters.serve("nightly", cron="15 2 * * *", limit=1)
