#!/usr/bin/env bash
# A night's run for engines whose retries know no exit codes: tries again, TRIES times at most, what may pass.
set -euo pipefail
PATH=$PWD/.venv/bin:$PATH # an environment beside the job, where there is one
job=${1:?the job file}
for ((try = 1; ; try++)); do
    code=0
    hmrf-dask run "$job" --json --quiet || code=$?
    case $code in
        75 | 137 | 143) ((try < ${TRIES:-12})) || exit "$code" ;;
        *) exit "$code" ;;
    esac
    sleep "${PAUSE:-600}"
done
