#!/usr/bin/env bash
# Runs gpumem's benches on this machine's GPU, and prints their figures beside the peers'. Takes the options of `cargo xtask bench`:
# bench.sh pool --peer-file rmm.csv --record run.jsonl
set -eu
exec "$(dirname "${BASH_SOURCE[0]}")/measure" bench "$@"
