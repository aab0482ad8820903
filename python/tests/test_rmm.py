"""RMM: the functions that it calls, on any driver; whole programs with RMM on a GPU."""

import ctypes
import gc
import importlib
import os
import subprocess
import sys
import threading
import types
import unittest
import weakref
from unittest import mock

import capturing
import gpumem

try:
    import rmm
    from cuda.bindings import runtime

    HAS_GPU = runtime.cudaGetDeviceCount()[1] > 0
except Exception:
    HAS_GPU = False


class Named:
    """A stream as RMM passes it."""

    def __init__(self, raw):
        self.raw = raw

    def __cuda_stream__(self):
        return (0, self.raw)


class CallbacksTest(unittest.TestCase):
    """Without RMM: a module of its name keeps the functions."""

    def setUp(self):
        self.pool = gpumem.Pool(hard_limit=64 << 20)
        keep = types.SimpleNamespace(CallbackMemoryResource=lambda allocate, deallocate: (allocate, deallocate))
        sys.modules.pop("gpumem.rmm", None)
        with mock.patch.dict(sys.modules, {"rmm": types.SimpleNamespace(mr=keep)}):
            self.resource = importlib.import_module("gpumem.rmm").resource
        self.allocate, self.deallocate = self.resource(self.pool)
        sys.modules.pop("gpumem.rmm", None)

    def test_streams_that_differ(self):
        streams = [self.pool.stream() for _ in range(3)]
        raws = [0, 1] + [stream.raw for stream in streams]
        for allocated_on in raws:
            for freed_on in raws:
                address = self.allocate(1 << 20, Named(allocated_on))
                self.assertEqual(self.pool.status().in_use_bytes, 1 << 20)
                self.deallocate(address, 1 << 20, Named(freed_on))
                self.assertEqual(self.pool.status().in_use_bytes, 0)

    def test_a_part_serves_its_resource(self):
        part, size = self.pool.part("columns"), 6 << 20
        allocate, deallocate = self.resource(part)
        addresses = allocate(size, Named(0)), self.allocate(size, Named(0))
        self.assertEqual([pool.status().in_use_bytes for pool in (part, self.pool)], [size, size])
        part.sleep()
        with self.assertRaisesRegex(gpumem.WrongState, "sleeps"):
            allocate(4096, Named(0))
        self.deallocate(self.allocate(4096, Named(0)), 4096, Named(0))
        part.wake()
        deallocate(addresses[0], size, Named(0))
        self.deallocate(addresses[1], size, Named(0))
        self.assertEqual([pool.status().in_use_bytes for pool in (part, self.pool)], [0, 0])

    def test_a_second_free_is_logged(self):
        address = self.allocate(100, Named(0))
        self.deallocate(address, 100, Named(0))
        with self.assertLogs("gpumem", "ERROR") as logged:
            self.deallocate(address, 100, Named(0))
        self.assertIn("no live block begins at", logged.output[0])

    def test_a_free_on_another_stream_orders_it_behind_both(self):
        first, second = self.pool.stream(), self.pool.stream()
        address = self.allocate(1 << 20, Named(first.raw))
        self.deallocate(address, 1 << 20, Named(second.raw))
        # Streams that their owner has destroyed are not named again.
        first.close()
        second.close()
        again = self.allocate(1 << 20, Named(0))
        self.deallocate(again, 1 << 20, Named(0))

    def test_threads_and_their_default_streams(self):
        errors = []

        def work(mine):
            try:
                for turn in range(200):
                    addresses = [self.allocate(4096, Named(raw)) for raw in (0, 2, mine)]
                    # Some of them are another thread's.
                    handed.extend(addresses)
                    for raw in (2, mine, 0):
                        self.deallocate(handed.pop(0), 4096, Named(raw))
            except BaseException as error:
                errors.append(error)

        handed = []
        streams = [self.pool.stream() for _ in range(4)]
        threads = [threading.Thread(target=work, args=(stream.raw,)) for stream in streams]
        with self.assertNoLogs("gpumem", "ERROR"):
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
        self.assertEqual(errors, [])
        self.assertEqual(self.pool.status().in_use_bytes, 0)

    def test_the_functions_outlive_their_resource(self):
        # As RMM's C++ objects have them: by address.
        address = self.allocate(100, Named(0))
        kept = weakref.ref(self.deallocate)
        del self.allocate, self.deallocate
        gc.collect()
        kept()(address, 100, Named(0))
        self.assertEqual(self.pool.status().in_use_bytes, 0)

    @unittest.skipUnless(os.environ.get("GPUMEM_DRIVER") == "drop-in", "calls the simulator's driver")
    def test_a_capture_refuses_and_goes_on(self):
        (cuda, stream), graph = capturing.stream(), ctypes.c_void_p()
        named = Named(stream.value)
        address = self.allocate(4096, named)
        self.assertEqual(cuda.cuStreamBeginCapture_v2(stream, 0), 0)
        with self.assertRaisesRegex(gpumem.WrongState, "part of a capture that was not announced"):
            self.allocate(4096, named)
        with self.assertLogs("gpumem", "ERROR"):
            self.deallocate(address, 4096, named)
        self.assertEqual(cuda.cuStreamEndCapture(stream, ctypes.byref(graph)), 0)
        self.assertEqual(cuda.cuGraphDestroy(graph), 0)
        self.assertEqual(self.pool.status().in_use_bytes, 4096)
        self.deallocate(address, 4096, named)
        self.assertEqual(self.pool.status().in_use_bytes, 0)
        self.assertEqual(cuda.cuStreamDestroy_v2(stream), 0)

    def test_no_bytes(self):
        stream = self.pool.stream()
        address = self.allocate(0, Named(stream.raw))
        with self.assertNoLogs("gpumem", "ERROR"):
            self.deallocate(address, 0, Named(stream.raw))

    def test_a_refusal_is_a_memory_error_with_the_report(self):
        with self.assertRaisesRegex(MemoryError, "the limit of 64.000 MiB refused 1.000 GiB"):
            self.allocate(1 << 30, Named(0))


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", "import gpumem, rmm, gpumem.rmm\n" + code],
        env=os.environ, capture_output=True, text=True, timeout=300,
    )
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


@unittest.skipUnless(HAS_GPU, "RMM is not installed, or has no GPU here")
class ProgramsTest(unittest.TestCase):
    def test_buffers_come_from_the_pool_and_hold_values(self):
        run(
            "gpumem.rmm.install()\n"
            "data = bytes(range(256)) * 4096\n"
            "buffer = rmm.DeviceBuffer.to_device(data)\n"
            "assert gpumem.rmm.memory_pool().status().in_use_bytes == len(data)\n"
            "assert buffer.copy().tobytes() == data\n"
            "del buffer\n"
            "assert gpumem.rmm.memory_pool().status().in_use_bytes == 0\n"
        )

    def test_streams_of_the_program(self):
        run(
            "from rmm.pylibrmm.stream import Stream\n"
            "gpumem.rmm.install()\n"
            "data = bytes(range(256)) * 4096\n"
            "for turn in range(50):\n"
            "    first, second = Stream(), Stream()\n"
            "    buffer = rmm.DeviceBuffer.to_device(data, stream=first)\n"
            "    first.synchronize()\n"
            "    other = rmm.DeviceBuffer(ptr=buffer.ptr, size=buffer.size, stream=second)\n"
            "    second.synchronize()\n"
            "    assert other.tobytes(stream=second) == data\n"
            "    del buffer, other\n"
            "assert gpumem.rmm.memory_pool().status().in_use_bytes == 0\n"
        )

    def test_lack_of_memory_has_the_report(self):
        out = run(
            "gpumem.rmm.install(hard_limit=64 << 20)\n"
            "try:\n    rmm.DeviceBuffer(size=1 << 30)\n"
            "except MemoryError as error:\n    print(error)\n"
        )
        self.assertIn("the limit of 64.000 MiB refused 1.000 GiB", out)

    def test_adaptors_of_rmm_above_it(self):
        run(
            "pool = gpumem.Pool()\n"
            "counted = rmm.mr.StatisticsResourceAdaptor(gpumem.rmm.resource(pool))\n"
            "rmm.mr.set_current_device_resource(counted)\n"
            "buffers = [rmm.DeviceBuffer(size=1 << 20) for _ in range(8)]\n"
            "assert counted.allocation_counts.current_bytes == pool.status().in_use_bytes == 8 << 20\n"
            "del buffers\n"
            "assert counted.allocation_counts.current_bytes == pool.status().in_use_bytes == 0\n"
        )


if __name__ == "__main__":
    unittest.main()
