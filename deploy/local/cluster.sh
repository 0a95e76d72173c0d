#!/usr/bin/env bash
# A Dask scheduler and worker processes for this machine alone; Ctrl-C ends them all.
set -euo pipefail
address_file=${1:-hmrf-scheduler.json}
trap 'kill $(jobs -p) 2>/dev/null' EXIT
dask scheduler --host 127.0.0.1 --port "${PORT:-8786}" --dashboard-address 127.0.0.1:0 \
    --scheduler-file "$address_file" &
dask worker --host 127.0.0.1 --nworkers "${WORKERS:-2}" --nthreads "${THREADS:-1}" --dashboard-address 127.0.0.1:0 \
    --scheduler-file "$address_file" &
wait -n
