"""In dags/ of Airflow 3: the job every night, in UTC. nightly.sh tries again what may pass."""

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

START = datetime(2026, 1, 1, tzinfo=UTC)
with DAG("clusters", schedule="15 2 * * *", start_date=START, max_active_runs=1):
    BashOperator(
        task_id="run",
        bash_command="exec bash nightly.sh job.yaml",
        cwd="/srv/clusters",
        execution_timeout=timedelta(hours=12),
    )
