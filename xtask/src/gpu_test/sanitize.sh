#!/usr/bin/env bash
# Runs the programs that launch kernels under NVIDIA's compute-sanitizer, which comes with the CUDA toolkit, on this
# machine's GPU: accesses out of bounds on the backend `none`, whose every block is an allocation of the driver's own;
# uses before the allocation and after the free, in stream order, on `native`. Says what was run, and fails when the
# checker has an objection, when a program fails, or when a suite ran nothing.
#
#   sanitize.sh [SECONDS]     for how long the stress test runs each time (20)
#
# COMPUTE_SANITIZER names the checker where it is not on the path.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seconds=${1:-20}
checker=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)}
[ -x "$checker" ] || { echo "there is no $checker: install the CUDA toolkit, or set COMPUTE_SANITIZER" >&2; exit 1; }
"$checker" --version

log=$(mktemp); trap 'rm -f "$log"' EXIT
lines=(); failures=0

# checked BACKEND OPTION… -- PROGRAM ARG…
checked() {
    local backend=$1; shift
    local options=()
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    local program=$1; shift
    local suite=$(basename "$program")
    case ${1-} in *::cuda::) suite=${1%%::*} ;; esac
    local name="$suite, backend $backend, memcheck ${options[*]-}"
    echo; echo "== $name =="
    # What the driver refuses is no finding: many tests are about that.
    GPUMEM_DRIVER=cuda GPUMEM_POOL=$backend "$checker" --tool memcheck --report-api-errors no --error-exitcode 86 \
        ${options[@]+"${options[@]}"} "$program" "$@" 2>&1 | tee "$log"
    local status=${PIPESTATUS[0]} verdict=ok
    case $status in
        0) ;;
        86) verdict="FAILED: the checker objects" ;;
        *) verdict="FAILED: exit code $status" ;;
    esac
    # No word of the checker's is no good word.
    grep -q "ERROR SUMMARY: 0 errors" "$log" || [ "$verdict" != ok ] || verdict="FAILED: the checker said nothing of its own"
    ! grep -q "test result: .* 0 passed" "$log" || verdict="FAILED: no case was run"
    [ "$verdict" = ok ] || failures=$((failures + 1))
    lines+=("$name: $verdict")
}

races=(--track-stream-ordered-races all)
stress=("$here/examples/stress" --seconds "$seconds" --threads 8 --streams 8 --size-max 4MiB --budget 1GiB)
checked none -- "${stress[@]}" --backend none
checked native "${races[@]}" -- "${stress[@]}" --backend native --wait-after-query
for suite in kernels array adapt; do
    checked none -- "$here/tests/layers" "$suite::cuda::" --test-threads=1
    checked native "${races[@]}" -- "$here/tests/layers" "$suite::cuda::" --test-threads=1
done

echo; printf '%s\n' "${lines[@]}"
[ "$failures" -eq 0 ] || { echo "$failures of ${#lines[@]} failed"; exit 1; }
echo "all ${#lines[@]} are clean"
