#!/usr/bin/env bash
# Runs gpumem's GPU tests on this machine, which needs an NVIDIA driver and nothing of Rust. The same as
# `cargo xtask gpu-test`, options included: run.sh --suite pool -- --nocapture
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
system=$(uname -sm)
[ "$system" = "Linux x86_64" ] || { echo "this bundle is for Linux x86_64, this machine is $system" >&2; exit 1; }
# The snapshots of texts are in the bundle. A text that differs is a failure, and its new form is not written.
export INSTA_WORKSPACE_ROOT="$here/tree" INSTA_UPDATE=no
exec "$here/gpu-test" "$@"
