"""CuPy: the functions that it calls, on any driver; whole programs with CuPy on a GPU."""

import contextlib
import ctypes
import importlib
import os
import pickle
import subprocess
import sys
import threading
import unittest
from unittest import mock

import capturing
import gpumem
import standin

try:
    import cupy

    HAS_GPU = cupy.cuda.runtime.getDeviceCount() > 0
except Exception:
    HAS_GPU = False


@unittest.skipIf(standin.missing(), standin.missing())
class CallsTest(unittest.TestCase):
    """Without CuPy: a module of its name makes its calls."""

    def setUp(self):
        self.load()
        self.module.install()

    def load(self, version="14.2.0"):
        with mock.patch.dict(sys.modules):
            self.native = standin.load(version=version)
            self.native.set_catches(version >= "14.1")
            self.native.set_stream(0)
            sys.modules.pop("gpumem.cupy", None)
            self.module = importlib.import_module("gpumem.cupy")
        # Its classes are pickled by their module's name.
        sys.modules["gpumem.cupy"] = self.module
        self.addCleanup(sys.modules.pop, "gpumem.cupy", None)
        # The default pool of the process is made once, and each test has its own.
        self.pool = gpumem.Pool(0, hard_limit=64 << 20)
        self.module._use(0, self.pool)

    def allocator(self, size):
        return self.native.allocator(size)

    @contextlib.contextmanager
    def current(self, raw):
        self.native.set_stream(raw)
        yield
        self.native.set_stream(0)

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
        self.assertEqual(self.native.allocator, self.module.allocator)

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
        with self.assertRaises(standin.TheirOutOfMemoryError) as caught:
            self.allocator(1 << 30)
        self.assertIsInstance(caught.exception, gpumem.OutOfMemory)
        text = str(caught.exception)
        self.assertTrue(text.startswith("Out of memory allocating 1,073,741,824 bytes (allocated so far: 1,048,576 bytes, limit"), text)
        self.assertIn("the limit of 64.000 MiB refused 1.000 GiB", text)
        self.assertEqual(str(pickle.loads(pickle.dumps(caught.exception))), text)
        del held

    def test_an_older_cupy_gets_the_same_exceptions(self):
        self.load("13.6.0")
        self.module.install()
        held = self.allocator(1 << 20)
        with self.assertRaisesRegex(standin.TheirOutOfMemoryError, "the limit of 64.000 MiB refused 1.000 GiB"):
            self.allocator(1 << 30)
        self.assertEqual(self.allocator(0).ptr, 0)
        del held
        self.assertEqual(self.in_use(), 0)

    def test_a_cupy_without_the_function_is_refused(self):
        for capi in ({}, {"get_current_stream_ptr": object()}):
            with mock.patch.dict(sys.modules):
                native = standin.load()
                sys.modules.pop("gpumem.cupy")
                with mock.patch.dict(native.__pyx_capi__, capi, clear=True):
                    with self.assertRaisesRegex(gpumem.Unsupported, "CuPy 14.2.0 has no C function for the current stream"):
                        importlib.import_module("gpumem.cupy")

    def test_a_pool_that_cannot_be_made_is_an_exception(self):
        self.module._pools.clear()
        self.module._entry.gpumem_cupy_set_pool(0, None, None)
        self.module.set_options(conf="backend:unknown")
        with self.assertRaisesRegex(gpumem.InvalidArgument, "backend"):
            self.allocator(1 << 20)

    @unittest.skipUnless(os.environ.get("GPUMEM_DRIVER") == "drop-in", "the simulator has two devices by a variable")
    def test_devices_have_pools_of_their_own(self):
        done = standin.run(
            standin.CUPY
            + "arrays = []\n"
            "for device in (0, 1):\n"
            "    cupy.set_device(device)\n"
            "    arrays.append(cupy.allocator(device + 1 << 20))\n"
            "print(*(gpumem.cupy.memory_pool(device).status().in_use_bytes >> 20 for device in (0, 1)))\n"
            "cupy.set_device(2)\n"
            "cupy.allocator(1)\n",
            GPUMEM_SIM_DEVICES="2",
        )
        self.assertEqual(done.stdout, "1 2\n", done.stderr)
        self.assertIn("gpumem.NoDevice", done.stderr.replace("_native.", ""))

    def test_threads_on_streams_of_their_own(self):
        def work():
            stream = self.pool.stream()
            for raw in (stream.raw, 0, 2, stream.raw):
                self.native.set_stream(raw)
                for turn in range(200):
                    handed.append(self.allocator(4096 + turn))
                    # Some are another thread's.
                    handed.pop(0)
            # Its owner may destroy it: no later call names it.
            stream.close()

        handed = []
        threads = [threading.Thread(target=work) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        handed.clear()
        self.assertEqual(self.in_use(), 0)

    def test_a_failed_free_is_reported_once(self):
        done = standin.run(
            standin.CUPY
            + "kept = [cupy.allocator(100) for _ in range(3)]\n"
            "for memory in kept:\n    gpumem.library.gpumem_free(memory.ptr)\n"
            "del memory, kept\n"
            "print(gpumem.cupy._entry.gpumem_cupy_failed_frees())\n"
        )
        self.assertEqual((done.returncode, done.stdout), (0, "3\n"), done.stderr)
        self.assertEqual(done.stderr.count("gpumem: an array's memory could not be freed: no live block begins at"), 1, done.stderr)

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
