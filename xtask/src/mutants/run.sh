#!/usr/bin/env bash
# Runs the mutants of this bundle, JOBS at a time (one for each core, if not given), and prints the table. The results go to
# results.jsonl; started again, it goes on where it was stopped: run.sh [JOBS [--again]]
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
system=$(uname -sm)
[ "$system" = "Linux x86_64" ] || { echo "this bundle is for Linux x86_64, this machine is $system" >&2; exit 1; }
jobs=${1:-$(nproc)}
shift || true
exec "$here/mutants" "$jobs" "$@"
