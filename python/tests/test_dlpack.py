"""Arrays of a Rust extension module as tensors of DLPack: with NumPy on any machine, with PyTorch and CuPy on a GPU.

DLPACK_EXTENSION is the path of the example `python_extension` of gpumem-array.
"""

import ctypes
import math
import os
import subprocess
import sys
import threading
import unittest

import standin
import test_exit

EXTENSION = os.environ.get("DLPACK_EXTENSION")

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch

    TORCH = torch.cuda.is_available()
except Exception:
    TORCH = False
try:
    import cupy

    CUPY = cupy.cuda.runtime.getDeviceCount() > 0
except Exception:
    CUPY = False

CUDA, PINNED = 2, 3

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
rename = ctypes.pythonapi.PyCapsule_SetName
rename.restype, rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]

NAMES = {True: b"dltensor", False: b"dltensor_versioned"}
USED = {True: b"used_dltensor", False: b"used_dltensor_versioned"}


def load():
    library = ctypes.CDLL(EXTENSION)
    library.extension_stream.restype = ctypes.c_size_t
    library.extension_in_use_bytes.restype = ctypes.c_uint64
    library.extension_export.restype = ctypes.c_void_p
    library.extension_export.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_int64, ctypes.c_bool]
    library.extension_sum.restype = ctypes.c_double
    library.extension_sum.argtypes = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool]
    return library


LIBRARY = load() if EXTENSION else None


class Matrix:
    """The numbers from 0, doubled, in rows of three: an object that speaks DLPack."""

    def __init__(self, rows, kind=CUDA, only_legacy=False):
        self.rows, self.kind, self.only_legacy, self.streams = rows, kind, only_legacy, []

    def __dlpack_device__(self):
        return (self.kind, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.streams.append(stream)
        is_legacy = self.only_legacy or max_version is None
        raw = LIBRARY.extension_export(self.rows, int(self.kind == PINNED), stream or 0, is_legacy)
        if raw is None:
            raise BufferError("the extension has printed why")
        return new_capsule(raw, NAMES[is_legacy], None)


def take(capsule):
    """The pointer of a capsule, which is used up."""
    is_legacy = b'"dltensor"' in repr(capsule).encode()
    raw = pointer(capsule, NAMES[is_legacy])
    rename(capsule, USED[is_legacy])
    return raw, is_legacy


def extension_sum(array, **arguments):
    raw, is_legacy = take(array.__dlpack__(**arguments))
    return LIBRARY.extension_sum(raw, is_legacy, "bool" in str(array.dtype))


@unittest.skipUnless(EXTENSION and numpy, "DLPACK_EXTENSION is not set, or NumPy is not installed")
class NumPyTest(unittest.TestCase):
    def test_pinned_memory_is_read_in_place(self):
        before = LIBRARY.extension_in_use_bytes()
        for only_legacy in [False, True]:
            array = numpy.from_dlpack(Matrix(5, PINNED, only_legacy))
            self.assertEqual(array.tolist(), (2.0 * numpy.arange(15).reshape(5, 3)).tolist())
            del array
        self.assertEqual(LIBRARY.extension_in_use_bytes(), before)

    def test_no_rows(self):
        self.assertEqual(numpy.from_dlpack(Matrix(0, PINNED)).shape, (0, 3))

    def test_a_process_ends_with_arrays_alive(self):
        make = "import test_dlpack as t\ndef make(size=5):\n    return t.numpy.from_dlpack(t.Matrix(5, t.PINNED))\n"
        codes = [*test_exit.ALIVE.values(), test_exit.CYCLES, test_exit.AT_THE_END, test_exit.IN_DEL, test_exit.DAEMONS, test_exit.LEAVES]
        # A capsule that nobody takes frees nothing: this one has no destructor.
        codes.append("kept = t.Matrix(5).__dlpack__()")
        for code in codes:
            with self.subTest(code=code):
                done = standin.run(make + code)
                self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
                # The extension says at its start which driver it has.
                self.assertRegex(done.stderr, r"\A(arrays are on .*\n)*\Z")


class OnDevice:
    """What PyTorch and CuPy have in common."""

    def test_exports(self):
        before = LIBRARY.extension_in_use_bytes()
        for only_legacy in [False, True]:
            for rows in [1, 1000]:
                tensor = self.of(Matrix(rows, CUDA, only_legacy))
                self.assertEqual(float((tensor + 1).sum()), 3 * rows * (3 * rows - 1) + 3 * rows)
                tensor *= 3
                self.assertEqual(float(tensor.sum()), 3.0 * 3 * rows * (3 * rows - 1))
                # The deleter runs on another thread.
                box = [tensor]
                del tensor
                thread = threading.Thread(target=box.clear)
                thread.start()
                thread.join()
        self.assertEqual(self.of(Matrix(0)).shape, (0, 3))
        self.assertEqual(LIBRARY.extension_in_use_bytes(), before)

    def test_the_stream_of_the_consumer_waits(self):
        for turn in range(20):
            with self.stream():
                matrix = Matrix(100_000)
                total = float(self.of(matrix).sum(dtype=self.module.float64))
            self.assertNotIn(matrix.streams[0], [None, 0, 1, 2])
            self.assertEqual(total, 300_000.0 * 299_999)

    def test_default_streams(self):
        for number in [None, -1, 1, 2]:
            matrix = Matrix(10)
            raw = LIBRARY.extension_export(10, 0, number or 0, False)
            capsule = new_capsule(raw, NAMES[False], None)
            wrapper = type("Once", (), {"__dlpack__": lambda self, **_: capsule, "__dlpack_device__": matrix.__dlpack_device__})
            if number == -1:
                # The consumer orders its work itself.
                self.module.cuda.Stream().synchronize()
                self.wait_for(LIBRARY.extension_stream())
            self.assertEqual(float(self.of(wrapper()).sum()), 870.0)

    def test_imports(self):
        for dtype in [self.module.float32, self.module.bool_ if hasattr(self.module, "bool_") else self.module.bool]:
            for _ in range(20):
                with self.stream():
                    x = self.ones(1_000_000, dtype)
                    ours = LIBRARY.extension_stream()
                    self.assertEqual(extension_sum(x, stream=ours), 1_000_000.0)
                    self.assertEqual(extension_sum(x, stream=ours, max_version=(1, 0)), 1_000_000.0)
        x = self.ones(600, self.module.float32).reshape(20, 30)
        self.assertEqual(extension_sum(x[::2, 1::3], stream=LIBRARY.extension_stream()), 100.0)
        self.assertEqual(extension_sum(x[:0], stream=LIBRARY.extension_stream()), 0.0)

    def test_a_process_ends_with_tensors_alive(self):
        code = (
            "import test_dlpack as t\n"
            f"x = t.{type(self).__name__}.of(None, t.Matrix(1000))\n"
            "t.kept = x\n"
            "print(float(x.sum()))\n"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=os.path.dirname(__file__), capture_output=True, text=True, timeout=300)
        self.assertEqual((done.returncode, done.stdout), (0, f"{3000.0 * 2999}\n"), done.stderr)


@unittest.skipUnless(EXTENSION and TORCH, "DLPACK_EXTENSION is not set, or PyTorch has no GPU here")
class TorchTest(OnDevice, unittest.TestCase):
    module = torch if TORCH else None

    def of(self, matrix):
        return torch.from_dlpack(matrix)

    def stream(self):
        return torch.cuda.stream(torch.cuda.Stream())

    def ones(self, count, dtype):
        torch.cuda._sleep(5_000_000)
        return torch.ones(count, dtype=dtype, device="cuda")

    def wait_for(self, raw):
        torch.cuda.current_stream().wait_stream(torch.cuda.ExternalStream(raw))


@unittest.skipUnless(EXTENSION and CUPY, "DLPACK_EXTENSION is not set, or CuPy has no GPU here")
class CuPyTest(OnDevice, unittest.TestCase):
    module = cupy if CUPY else None

    def of(self, matrix):
        return cupy.from_dlpack(matrix)

    def stream(self):
        return cupy.cuda.Stream(non_blocking=True)

    def ones(self, count, dtype):
        return cupy.ones(count, dtype=dtype)

    def wait_for(self, raw):
        event = cupy.cuda.Event()
        event.record(cupy.cuda.ExternalStream(raw))
        cupy.cuda.get_current_stream().wait_event(event)

    def test_negative_strides(self):
        # CuPy (14 and 15.0.0a1) divides strides as unsigned numbers: what it exports as the stride of -1 element lies beyond the address space.
        x = cupy.arange(10, dtype=cupy.float32)[::-1]
        total = extension_sum(x[1:4], stream=LIBRARY.extension_stream())
        self.assertTrue(total == 21.0 or math.isnan(total), total)


if __name__ == "__main__":
    unittest.main()
