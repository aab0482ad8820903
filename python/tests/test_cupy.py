"""CuPy: the functions that it calls, on any driver; whole programs with CuPy on a GPU."""

import contextlib
import ctypes
import importlib
import os
import pickle
import subprocess
import sys
import threading
import types
import unittest
from unittest import mock

import capturing
import gpumem

try:
    import cupy

    HAS_GPU = cupy.cuda.runtime.getDeviceCount() > 0
except Exception:
    HAS_GPU = False


class TheirOutOfMemoryError(MemoryError):
    """CuPy's class."""

    def __init__(self, size, total, limit=0):
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes, limit set to: {limit:,} bytes).")
        self._size, self._total, self._limit = size, total, limit


class Memory:
    """An array's memory, as CuPy keeps it."""

    def __init__(self, functions, size):
        self._functions = functions
        self.ptr = functions._malloc(size, 0)

    def __del__(self):
        if getattr(self, "ptr", 0):
            self._functions._free(self.ptr, 0)


class FunctionsAllocator:
    def __init__(self, malloc, free):
        self._malloc, self._free = malloc, free

    def malloc(self, size):
        return Memory(self, size)


class CallsTest(unittest.TestCase):
    """Without CuPy: a module of its name makes its calls."""

    def setUp(self):
        self.raw, self.allocator = 0, None
        cuda = types.SimpleNamespace(
            PythonFunctionAllocator=FunctionsAllocator,
            get_current_stream=lambda: types.SimpleNamespace(ptr=self.raw),
            memory=types.SimpleNamespace(OutOfMemoryError=TheirOutOfMemoryError),
            runtime=types.SimpleNamespace(getDevice=lambda: 0),
            set_allocator=lambda allocator: setattr(self, "allocator", allocator),
        )
        sys.modules.pop("gpumem.cupy", None)
        with mock.patch.dict(sys.modules, {"cupy": types.SimpleNamespace(cuda=cuda)}):
            self.module = importlib.import_module("gpumem.cupy")
        # Its classes are pickled by their module's name.
        self.addCleanup(sys.modules.pop, "gpumem.cupy", None)
        sys.modules["gpumem.cupy"] = self.module
        self.module.install()
        # The default pool of the process is made once, and each test has its own.
        self.pool = self.module._pools[0] = gpumem.Pool(0, hard_limit=64 << 20)

    @contextlib.contextmanager
    def current(self, raw):
        self.raw, before = raw, self.raw
        yield
        self.raw = before

    def in_use(self):
        return self.pool.status().in_use_bytes

    def test_arrays_on_all_kinds_of_streams(self):
        own = self.pool.stream()
        for raw in (0, 1, 2, own.raw):
            with self.current(raw):
                memory = self.allocator(1 << 20)
                self.assertEqual(self.in_use(), 1 << 20)
                del memory
                self.assertEqual(self.in_use(), 0)

    def test_it_is_installed_once(self):
        with self.assertRaisesRegex(gpumem.Error, "installed already"):
            self.module.install()
        self.assertIs(self.allocator, self.module.allocator)

    def test_many_arrays_on_the_default_stream_of_the_thread(self):
        def work():
            with self.current(2):
                for _ in range(6_000):
                    self.allocator(4096)

        work()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        # A process has 4,096 handles of streams.
        self.pool.stream().close()

    def test_lack_of_memory_is_cupys_error_with_the_report(self):
        held = self.allocator(1 << 20)
        with self.assertRaises(TheirOutOfMemoryError) as caught:
            self.allocator(1 << 30)
        self.assertIsInstance(caught.exception, gpumem.OutOfMemory)
        text = str(caught.exception)
        self.assertTrue(text.startswith("Out of memory allocating 1,073,741,824 bytes (allocated so far: 1,048,576 bytes, limit"), text)
        self.assertIn("the limit of 64.000 MiB refused 1.000 GiB", text)
        self.assertEqual(str(pickle.loads(pickle.dumps(caught.exception))), text)
        del held

    def test_a_failed_free_is_logged(self):
        memory = self.allocator(100)
        gpumem.library.gpumem_free(memory.ptr)
        with self.assertLogs("gpumem", "ERROR") as logged:
            del memory
        self.assertIn("no live block begins at", logged.output[0])

    @unittest.skipUnless(os.environ.get("GPUMEM_DRIVER") == "drop-in", "calls the simulator's driver")
    def test_a_capture_refuses_and_goes_on(self):
        (cuda, stream), graph = capturing.stream(), ctypes.c_void_p()
        before = self.allocator(1 << 20)
        self.assertEqual(cuda.cuStreamBeginCapture_v2(stream, 0), 0)
        with self.current(stream.value), self.assertRaisesRegex(gpumem.WrongState, "part of a capture that was not announced"):
            self.allocator(1 << 20)
        self.assertEqual(cuda.cuMemsetD8Async(ctypes.c_uint64(before.ptr), 3, ctypes.c_size_t(1 << 20), stream), 0)
        self.assertEqual(cuda.cuStreamEndCapture(stream, ctypes.byref(graph)), 0)
        self.assertEqual(cuda.cuGraphDestroy(graph), 0)
        with self.current(stream.value):
            self.allocator(1 << 20)
        del before
        self.assertEqual(cuda.cuStreamDestroy_v2(stream), 0)


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", "import cupy, gpumem, gpumem.cupy\n" + code],
        env=os.environ, capture_output=True, text=True, timeout=300,
    )
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


@unittest.skipUnless(HAS_GPU, "CuPy is not installed, or has no GPU here")
class ProgramsTest(unittest.TestCase):
    def test_arrays_come_from_the_pool(self):
        run(
            "gpumem.cupy.install()\n"
            "x = cupy.arange(1 << 20, dtype=cupy.float64)\n"
            "assert gpumem.cupy.memory_pool().status().in_use_bytes >= 8 << 20\n"
            "assert float((x * 2).sum()) == (1 << 20) * ((1 << 20) - 1)\n"
            "del x\n"
            "assert gpumem.cupy.memory_pool().status().in_use_bytes == 0\n"
        )

    def test_lack_of_memory_has_the_report(self):
        out = run(
            "gpumem.cupy.install(hard_limit=64 << 20)\n"
            "try:\n    cupy.zeros(1 << 30, dtype=cupy.uint8)\n"
            "except cupy.cuda.memory.OutOfMemoryError as error:\n    print(error)\n"
        )
        unittest.TestCase().assertIn("the limit of 64.000 MiB refused 1.000 GiB", out)

    def test_a_part_of_a_program(self):
        run(
            "with cupy.cuda.using_allocator(gpumem.cupy.allocator):\n"
            "    x = cupy.ones(1 << 20, dtype=cupy.uint8)\n"
            "y = cupy.ones(1 << 20, dtype=cupy.uint8)\n"
            "assert gpumem.cupy.memory_pool().status().in_use_bytes == 1 << 20\n"
        )

    def test_streams_of_the_program(self):
        run(
            "gpumem.cupy.install()\n"
            "for turn in range(50):\n"
            "    with cupy.cuda.Stream(non_blocking=True) as stream:\n"
            "        x = cupy.full(1 << 20, turn, dtype=cupy.int32)\n"
            "        y = (x + 1).sum()\n"
            "        stream.synchronize()\n"
            "        assert int(y) == (turn + 1) << 20\n"
        )


if __name__ == "__main__":
    unittest.main()
