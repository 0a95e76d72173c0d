#!/usr/bin/env bash
# Makes an authority and one certificate for scheduler, workers and client, for tests: 30 days, in one folder.
set -euo pipefail
folder=${1:?where to write, for example tls}
umask 077
mkdir -p "$folder"
new_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 30)
openssl req -x509 "${new_key[@]}" -subj /CN=hmrf-dask-tests -keyout "$folder/authority-key.pem" -out "$folder/authority.pem"
openssl req -x509 "${new_key[@]}" -subj /CN=dask -CA "$folder/authority.pem" -CAkey "$folder/authority-key.pem" \
    -addext basicConstraints=CA:FALSE -keyout "$folder/key.pem" -out "$folder/certificate.pem"
rm "$folder/authority-key.pem" # nobody is let in later
