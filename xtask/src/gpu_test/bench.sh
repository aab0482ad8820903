#!/usr/bin/env bash
# Runs gpumem's benches on this machine's GPU, beside what is known of its peers. The same as `cargo xtask bench`, options
# included: bench.sh pool --peer-file rmm.csv
set -eu
exec "$(dirname "${BASH_SOURCE[0]}")/measure" bench "$@"
