"""Workers that are forked from a process that uses gpumem. Each program has a process of its own."""

import os
import subprocess
import sys
import unittest

import standin
from test_exit import DOORS

SETUP = """
import multiprocessing, os, sys, threading
import gpumem

pool = gpumem.Pool(hard_limit=256 << 20)
stream = pool.stream()
other = pool.stream()
block = pool.alloc(1 << 20, stream)
pool.alloc(4096, stream).free()  # cached from now on

def refusal(call):
    try:
        call()
    except gpumem.Forked as error:
        return str(error)
    raise SystemExit(f"not refused: {call}")
"""


def run(code):
    """Runs a program whose output must be only what it prints itself."""
    # Python 3.12 warns of each fork of a process with threads, such as those of the driver.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SETUP + code]
    done = subprocess.run(command, env=os.environ.copy(), capture_output=True, text=True, timeout=120)
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout.split()


class ForkTest(unittest.TestCase):
    def test_a_worker_that_uses_the_gpu_is_refused(self):
        found = run("""
context = multiprocessing.get_context("fork")
def work(results):
    calls = [
        lambda: pool.alloc(4096, stream), lambda: pool.alloc(3 << 20, stream), pool.status, pool.status_text, pool.status_json, pool.trim, pool.stream,
        stream.synchronize, lambda: block.record_use(stream), gpumem.Pool, gpumem.Pool.for_device, lambda: pool.part("a"),
        pool.scope("a").__enter__, lambda: pool.on_shortage("a", print), lambda: pool.set_hard_limit("50%"),
        lambda: pool.set_soft_limit("50%"), pool.sleep, pool.wake, pool.reclaim, pool.reset_peaks, pool.flush_trace,
        lambda: pool.explain_refusal(1), lambda: pool.borrow(0), lambda: pool.long_lived(0), lambda: stream.raw,
        lambda: stream.wait_for(other), stream.retire, lambda: gpumem.record_use(block.address, other),
    ]
    for call in calls:
        assert "forked: start workers with spawn" in refusal(call)
    results.put(len(calls))
results = context.Queue()
worker = context.Process(target=work, args=(results,))
worker.start()
print(results.get(timeout=60))
worker.join(60)
print(worker.exitcode, pool.alloc(4096, stream).address != 0)
""")
        self.assertEqual(found, ["28", "0", "True"])

    @unittest.skipUnless(os.environ.get("GPUMEM_DRIVER") == "drop-in", "modules of their names stand in for the libraries")
    @unittest.skipIf(standin.missing(), standin.missing())
    def test_a_worker_that_uses_the_gpu_through_a_library_is_refused(self):
        code = """
import os, sys
kept = [make(), make()]
kept.pop()  # cached from now on
child = os.fork()
if child == 0:
    for size in (4096, 3 << 20):
        try:
            make(size)
        except Exception as error:
            refusal = str(error)
        else:
            refusal = "none"
        if "forked: start workers with spawn" not in refusal:
            sys.exit(f"{size} bytes: {refusal}")
    # It ends with the parent's memory.
    sys.exit(0)
print(os.waitpid(child, 0)[1], make() is not None)
"""
        for name in ("pool", "cupy", "torch", "rmm"):
            with self.subTest(door=name):
                done = standin.run(DOORS[name] + code, PYTHONWARNINGS="ignore::DeprecationWarning")
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "0 True\n", ""))

    def test_workers_that_do_not_use_it_work(self):
        """Data loaders: threads of the parent hold locks at the fork, and workers end with what they have inherited."""
        found = run("""
is_over = threading.Event()
def hold():
    own = pool.stream()
    while not is_over.is_set():
        with pool.alloc(5000, own):
            pool.status()
threads = [threading.Thread(target=hold) for _ in range(3)]
[thread.start() for thread in threads]
def square(number):
    return number * number
with multiprocessing.get_context("fork").Pool(4) as workers:
    print(sum(workers.map(square, range(100))))
for _ in range(10):
    worker = multiprocessing.get_context("fork").Process(target=square, args=(2,))
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0, worker.exitcode
is_over.set()
[thread.join() for thread in threads]
""")
        self.assertEqual(found, ["328350"])

    def test_a_child_ends_like_any_program(self):
        """By `sys.exit`, with the interpreter torn down: pools, streams and blocks are collected, also those in cycles."""
        found = run("""
import gc
cycle = [pool, stream, pool.alloc(100, stream)]
cycle.append(cycle)
holder = pool.on_shortage("cache", lambda is_last_resort: None)
scope = pool.scope("requests").__enter__()
for _ in range(5):
    child = os.fork()
    if child == 0:
        block.free()
        scope.__exit__(None, None, None)
        other = [holder.close, pool.close, stream.close]
        [close() for close in other]
        del cycle
        gc.collect()
        sys.exit(0)
    print(os.waitpid(child, 0)[1])
block.free()
""")
        self.assertEqual(found, ["0"] * 5)

    def test_spawned_workers_use_the_gpu(self):
        """A worker that is spawned starts a driver of its own."""
        code = (
            "import multiprocessing, gpumem\n"
            "pool = gpumem.Pool(); stream = pool.stream(); pool.alloc(1 << 20, stream).free()\n"
            "worker = multiprocessing.get_context('spawn').Pool(1)\n"
            "print(worker.apply(gpumem.version) == gpumem.version())\n"
            "worker.close(); worker.join()\n"
        )
        done = subprocess.run([sys.executable, "-c", code], env=os.environ.copy(), capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "True"), done.stderr)
