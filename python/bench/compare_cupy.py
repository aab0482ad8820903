#!/usr/bin/env python3
"""CuPy's own tests on CuPy's pool and on gpumem, a process for each folder: failures and exit status beside each other.

    git clone --depth 1 --branch v14.2.0 https://github.com/cupy/cupy    # the version that is installed
    python3 -m pip install pytest
    python3 bench/compare_cupy.py cupy/tests/cupy_tests
    python3 bench/compare_cupy.py cupy/tests/cupy_tests --folders core_tests,indexing_tests -- -k "not slow"

What stands after `--` goes to pytest. The exit status of this program is 0 if each folder ends on gpumem as on CuPy's pool and the same
tests fail.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from pathlib import Path

ALLOCATORS = ("native", "gpumem")
# The name of this file as a plugin of pytest: see `pytest_configure`.
PLUGIN = Path(__file__).stem


def pytest_configure(config):
    """As a plugin, makes gpumem the allocator before the first test is collected."""
    import gpumem.cupy

    gpumem.cupy.install()


def run(folder, allocator, arguments, timeout):
    """Runs a folder's tests. Returns the exit status, the outcome by test, the seconds, and the end of the output."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(folder), *arguments]
        paths = os.environ.get("PYTHONPATH", "")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent), paths]))}
        if allocator == "gpumem":
            command[4:4] = ["-p", PLUGIN]
        begin = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=folder.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
            )
            status, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            status, output = "timeout", (late.stdout or b"").decode(errors="replace")
        outcomes = read(report) if report.exists() else {}
        return status, outcomes, time.monotonic() - begin, "\n".join(output.splitlines()[-15:])


def read(report):
    outcomes = {}
    for case in xml.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = next((kind for kind in ("error", "failure", "skipped") if kind in kinds), "passed")
        outcomes[f"{case.get('classname')}.{case.get('name')}"] = outcome
    return outcomes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=Path, help="the folder tests/cupy_tests of the installed version")
    parser.add_argument("--folders", help="names of folders in it, with commas; all of them if left out")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for a folder")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, arguments = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    tests = options.tests.resolve()
    names = options.folders.split(",") if options.folders else sorted(path.name for path in tests.glob("*_tests") if path.is_dir())
    if not names:
        raise SystemExit(f"{tests} has no folders of tests; pass tests/cupy_tests of CuPy's repository")
    differences = 0
    print(f"{'folder':24} {'allocator':9} {'exit':>8} {'passed':>8} {'failed':>7} {'skipped':>8} {'seconds':>8}")
    for name in names:
        found = {}
        for allocator in ALLOCATORS:
            found[allocator] = status, outcomes, seconds, output = run(tests / name, allocator, arguments, options.timeout)
            count = list(outcomes.values()).count
            failed = count("failure") + count("error")
            print(f"{name:24} {allocator:9} {status!s:>8} {count('passed'):8} {failed:7} {count('skipped'):8} {seconds:8.0f}", flush=True)
            if status not in (0, 1, 5):
                print(output, flush=True)
        (native_status, native, *_), (status, outcomes, *_) = (found[allocator] for allocator in ALLOCATORS)
        differing = sorted(test for test in native.keys() | outcomes.keys() if native.get(test) != outcomes.get(test))
        for test in differing:
            print(f"    {test}: {native.get(test, 'not run')} natively, {outcomes.get(test, 'not run')} on gpumem")
        differences += bool(differing or status != native_status)
    print("the same in all folders" if differences == 0 else f"{differences} of {len(names)} folders differ")
    raise SystemExit(differences != 0)


if __name__ == "__main__":
    main()
