"""Processes that end while memory lives: each door of the package, in each way to end. The exit status and the errors are checked."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

import standin

# By door, code that defines `make(size)`: memory that is freed when Python collects it.
POOL = """
import gpumem
pool = gpumem.Pool(hard_limit=64 << 20, on_out_of_memory=lambda report: refusals.append(report))
refusals, stream = [], pool.stream()
def make(size=4096):
    return pool.alloc(size, stream)
"""
CUPY = standin.CUPY + """
def make(size=4096):
    return cupy.allocator(size)
"""
TORCH = """
import ctypes, sys, types, standin, gpumem
native = standin.load()
sys.modules["torch"] = types.SimpleNamespace(__version__="0", cuda=types.SimpleNamespace(current_device=lambda: 0))
import gpumem.torch
gpumem.torch._entry = ctypes.CDLL(str(gpumem.torch.FOLDER / "libgpumem_torch.so"))
gpumem.torch._entry.gpumem_torch_set_exceptions.argtypes = (ctypes.c_void_p,) * 3
assert gpumem.torch._entry.gpumem_torch_set_exceptions(*native.torch_exceptions())
functions = native.torch_allocator(gpumem.torch._address("gpumem_torch_alloc"), gpumem.torch._address("gpumem_torch_free"))
def make(size=4096):
    return functions.malloc(size)
"""
RMM = """
import sys, types, standin, gpumem
native = standin.load()
# RMM's resource has references to the functions, and its buffers, and the copies in C++, have none to the resource.
mr = types.SimpleNamespace(CallbackMemoryResource=lambda *functions: functions)
sys.modules["rmm"] = types.SimpleNamespace(mr=mr)
import gpumem.rmm
class Stream:
    def __cuda_stream__(self):
        return (0, 0)
pool = gpumem.Pool(hard_limit=64 << 20)
allocate, deallocate = gpumem.rmm.resource(pool)
free = id(deallocate)
def make(size=4096):
    stream = Stream()
    return native.Buffer(free, stream, allocate(size, stream))
"""
DOORS = {"pool": POOL, "cupy": CUPY, "torch": TORCH, "rmm": RMM}

# The libraries themselves, as far as they work on the simulator.
CUPY_ITSELF = """
import cupy, cupy_backends.cuda.stream, standin
# The function asks the CUDA runtime, which does not start on the simulator.
cupy_backends.cuda.stream.__pyx_capi__.update(standin.extension().__pyx_capi__)
import gpumem.cupy
functions = [gpumem.cupy._address(getattr(gpumem.cupy._entry, name)) for name in ("gpumem_cupy_alloc", "gpumem_cupy_free")]
def make(size=4096, memory=cupy.cuda.memory):
    return memory.MemoryPointer(memory.CFunctionAllocatorMemory(size, 0, *functions, 0), 0)
"""
RMM_ITSELF = """
import rmm, gpumem.rmm
pool = gpumem.Pool(hard_limit=64 << 20)
resource = gpumem.rmm.resource(pool)
def make(size=4096):
    return rmm.DeviceBuffer(size=size, mr=resource)
"""
for name, door in (("cupy", CUPY_ITSELF), ("rmm", RMM_ITSELF)):
    if importlib.util.find_spec(name) is not None:
        DOORS[f"{name} itself"] = door

# Whole programs on a GPU, without gpumem and on it.
NATIVE = {
    "cupy": "import cupy\nmake = lambda: cupy.ones(1000)\n",
    "torch": "import torch\nmake = lambda: torch.ones(1000, device='cuda')\n",
    "rmm": "import rmm\nmake = lambda: rmm.DeviceBuffer(size=1000)\n",
}
# Of a program that ends with an error on gpumem, at most so many runs without it.
NATIVE_RUNS = 5
ON_GPU = {name: f"import gpumem.{name}\ngpumem.{name}.install()\n{program}" for name, program in NATIVE.items()}

ALIVE = {
    "a global": "kept = make()",
    "a global of another module": "import json; json.kept = make()",
    "a builtin": "import builtins; builtins.kept = [make() for _ in range(100)]",
    "a module of its own": "import sys; sys.modules['kept'] = [make() for _ in range(100)]",
    "an attribute of a class": "class Kept: memory = make()",
    "a default argument": "def kept(memory=make()): pass",
    "a value of a thread": "import threading; local = threading.local(); local.kept = make()",
    "a closure that atexit keeps": "import atexit\nkept = make()\natexit.register(lambda kept=kept: None)",
    "a reference that is never given back": "import ctypes\nkept = make()\nctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))",
}

CYCLES = """
import gc
gc.disable()
class Node:
    pass
for turn in range(100):
    node = Node()
    node.itself, node.memory = node, make()
"""

AT_THE_END = """
import atexit
def request():
    for turn in range(10):
        kept.append(make())
    del kept[::2]
kept = []
atexit.register(request)
"""

IN_DEL = """
import builtins
class Requests:
    def __del__(self, make=make, kept=[]):
        kept.append(make())
builtins.first, second = Requests(), Requests()
"""

OUTLIVES = """
import threading, time
started = threading.Event()
def work():
    kept = [make() for _ in range(10)]
    started.set()
    time.sleep(0.2)
    kept.append(make())
    print(len(kept))
threading.Thread(target=work).start()
started.wait()
kept = make()
"""

DAEMONS = """
import threading
def work():
    kept = []
    started.release()
    while True:
        kept.append(make())
        if len(kept) > 100:
            kept.clear()
started = threading.Semaphore(0)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
for _ in range(4):
    started.acquire()
kept = [make() for _ in range(100)]
"""

REFUSED_DAEMONS = DAEMONS.replace(
    "kept.append(make())\n        if",
    "try:\n            make(1 << 40)\n        except MemoryError:\n            refusals.clear()\n        if",
)

# RMM's C++ code stands between a callback and the thread's end, which Python before 3.14 makes an unwinding of the stack.
CUTS_CALLBACKS = sys.version_info < (3, 14)


def outcome(done):
    """How a process ended: its status, and the kinds of errors that it printed. The words of a crash differ from run to run."""
    kinds = set(re.findall(r"^\w+(?:Error|Exception)\b", done.stderr, re.M)) or {done.stderr}
    return done.returncode, kinds if done.returncode >= 0 else set()


LEAVES = "import os\nkept = make()\nos._exit(0)\n"
LEAVES_FROM_A_THREAD = """
import os, threading
kept = make()
def work():
    kept = make()
    os._exit(0)
threading.Thread(target=work).start()
"""
EXITS_IN_A_FUNCTION = "import sys\ndef work():\n    kept = make()\n    sys.exit(0)\nwork()\n"
REFUSED = "kept = make()\ntry:\n    make(1 << 50)\nexcept Exception as error:\n    refused = error\n"


@unittest.skipUnless(os.environ.get("GPUMEM_DRIVER") == "drop-in", "for the simulator: modules of their names stand in for the libraries")
@unittest.skipIf(standin.missing(), standin.missing())
class ExitTest(unittest.TestCase):
    def ends(self, code, output="", doors=DOORS):
        for name in doors:
            with self.subTest(door=name, code=code):
                done = standin.run(DOORS[name] + code)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, output, ""))

    def test_with_memory_alive(self):
        for code in ALIVE.values():
            self.ends(code)

    def test_with_garbage_in_cycles(self):
        self.ends(CYCLES)

    def test_with_requests_at_the_end(self):
        self.ends(AT_THE_END)
        # Handlers run in the reverse order: this one after those of the package.
        for name, door in DOORS.items():
            with self.subTest(door=name):
                done = standin.run(AT_THE_END + door)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_with_requests_in_finalizers(self):
        self.ends(IN_DEL)

    def test_with_a_thread_that_outlives_main(self):
        self.ends(OUTLIVES, "11\n")

    def test_with_threads_that_request_until_the_end(self):
        doors = [name for name in DOORS if name != "rmm itself" or not CUTS_CALLBACKS]
        for _ in range(3):
            self.ends(DAEMONS, doors=doors)

    def test_with_threads_that_get_reports_until_the_end(self):
        for _ in range(10):
            self.ends(REFUSED_DAEMONS, doors=["pool"])

    def test_without_an_end(self):
        self.ends(LEAVES)
        self.ends(LEAVES_FROM_A_THREAD)
        self.ends(EXITS_IN_A_FUNCTION)

    def test_with_a_record(self):
        """The record has the last events, and counts as whole."""
        for name, door in DOORS.items():
            with self.subTest(door=name), tempfile.TemporaryDirectory() as folder:
                record = os.path.join(folder, "run.trace")
                done = standin.run(door + "kept = [make(1 << 20) for _ in range(40)]", GPUMEM_TRACE=record)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
                replay = [sys.executable, "-m", "gpumem", "replay", record, "--find-limit", "--json"]
                replayed = subprocess.run(replay, check=True, capture_output=True, text=True)
                # The first line is for the settings of the program.
                found = json.loads(replayed.stdout.splitlines()[0])
                self.assertIsNone(found["open_end"])
                self.assertGreaterEqual(found["smallest_limit_bytes"], 40 << 20)

    def test_after_a_refusal(self):
        self.ends(REFUSED)

    def test_with_a_refusal_once_python_has_ended(self):
        code = """
import ctypes, standin
pool._end = stream._end = int
address = ctypes.cast(gpumem._native.library.gpumem_alloc, ctypes.c_void_p).value
holder = pool.on_shortage("a cache", lambda is_last: None)
standin.extension().request_at_exit(address, pool._handle.value, stream._handle.value)
"""
        # Python is gone, and the request is refused without a call of Python's functions.
        self.ends(code, "0 4\n", doors=["pool"])

    def test_with_a_pool_of_the_program_alive(self):
        for kept in ("", "import builtins; builtins.kept = pool, stream, memory\n", "import json; json.kept = pool; builtins = stream\n"):
            done = standin.run(f"{POOL}memory = make()\npart = pool.part('part')\n{kept}")
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))


@unittest.skipIf(os.environ.get("GPUMEM_DRIVER") == "drop-in", "for a GPU")
class GpuTest(unittest.TestCase):
    def ends(self, code, doors=NATIVE):
        """Each program ends without an error, or as it does without gpumem: libraries may fail at the end of Python by themselves."""
        for name in doors:
            with self.subTest(door=name, code=code):
                if importlib.util.find_spec(name) is None:
                    self.skipTest(f"{name} is not installed")
                done = standin.run(ON_GPU[name] + code)
                found, native = outcome(done), [(0, {""})]
                # With threads, the ends differ from run to run.
                while found not in native and len(native) <= NATIVE_RUNS:
                    native.append(outcome(standin.run(NATIVE[name] + code)))
                self.assertIn(found, native, done.stderr)

    def test_with_memory_alive(self):
        for code in (*ALIVE.values(), CYCLES):
            self.ends(code)

    def test_with_requests_at_the_end(self):
        for code in (AT_THE_END, IN_DEL, f"make()\n{IN_DEL}"):
            self.ends(code)

    def test_with_threads(self):
        self.ends(OUTLIVES)
        self.ends(DAEMONS, [name for name in NATIVE if name != "rmm" or not CUTS_CALLBACKS])


if __name__ == "__main__":
    unittest.main()
