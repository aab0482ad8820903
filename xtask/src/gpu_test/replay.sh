#!/usr/bin/env bash
# Runs recorded traces through gpumem's pool on this machine's GPU. Takes the options of `cargo xtask replay`:
# replay.sh traces/kv_cache_inference.csv.gz --backend native
set -eu
exec "$(dirname "${BASH_SOURCE[0]}")/measure" replay "$@"
