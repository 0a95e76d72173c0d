"""All in one allocation, without a scheduler file of ours: srun -n 6 python runner.py job.yaml."""

from __future__ import annotations

import subprocess
import sys

from dask.distributed import Client
from dask_jobqueue.slurm import SLURMRunner

# Only the process that is neither scheduler nor worker runs what follows.
runner = SLURMRunner(scheduler_options={"protocol": "tls"}, worker_options={"nthreads": 4})
address = str(runner.scheduler_file)
command = ["hmrf-dask", "run", *sys.argv[1:], "--scheduler-file", address, "--json", "--quiet"]
code = subprocess.run(command, check=False).returncode
Client(scheduler_file=address).shutdown()  # by hand: the runner's own way has no TLS
sys.exit(code)
