"""The device's default pool: PyTorch, CuPy and RMM on gpumem share it. Each program has a process of its own."""

import os
import subprocess
import sys
import unittest

try:
    import cupy
    import torch

    HAS_BOTH = cupy.cuda.runtime.getDeviceCount() > 0 and torch.cuda.is_available()
except Exception:
    HAS_BOTH = False

MODULES = """
import ctypes, sys, types
import gpumem
from gpumem._native import FOLDER, library

class Allocator:
    def __init__(self, malloc, free):
        self.malloc = malloc

class TheirError(MemoryError):
    pass

cuda = types.SimpleNamespace(
    PythonFunctionAllocator=Allocator,
    memory=types.SimpleNamespace(OutOfMemoryError=TheirError),
    runtime=types.SimpleNamespace(getDevice=lambda: 0),
    get_current_stream=lambda: types.SimpleNamespace(ptr=0),
)
sys.modules["cupy"] = types.SimpleNamespace(cuda=cuda)
sys.modules["torch"] = types.SimpleNamespace(__version__="0", cuda=types.SimpleNamespace(current_device=lambda: 0))
import gpumem.cupy, gpumem.torch
gpumem.torch._entry = ctypes.CDLL(str(FOLDER / "libgpumem_torch.so"))
entry = gpumem.torch._entry
entry.gpumem_torch_set_options.argtypes = (ctypes.c_char_p,) * 4
entry.gpumem_torch_set_options.restype = None
"""


def run(code, modules=MODULES):
    done = subprocess.run([sys.executable, "-c", modules + code], env=os.environ.copy(), capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout.strip()


@unittest.skipUnless(os.environ.get("GPUMEM_DRIVER") == "drop-in", "modules of their names stand in for the libraries")
class CallsTest(unittest.TestCase):
    def test_the_options_of_the_first_count(self):
        for first, second in (("gpumem.torch", "gpumem.cupy"), ("gpumem.cupy", "gpumem.torch")):
            found = run(f"""
{first}.set_options(hard_limit=64 << 20)
pools = [{first}.memory_pool(), {second}.memory_pool(), gpumem.Pool.for_device(0)]
with pools[0].stream() as stream, pools[0].alloc(1 << 20, stream):
    print(*((pool.status().in_use_bytes, pool.status().hard_limit_bytes) for pool in pools))
""")
            self.assertEqual(found, " ".join(["(1048576, 67108864)"] * 3), first)

    def test_options_that_come_too_late_are_refused(self):
        found = run("""
gpumem.torch.memory_pool()
gpumem.cupy.set_options(hard_limit=64 << 20)
try:
    gpumem.cupy.memory_pool()
except gpumem.Error as error:
    print(type(error).__name__, error)
""")
        self.assertIn("WrongState device 0 has a default pool already", found)
        self.assertIn("the first of", found)
        found = run("""
gpumem.cupy.memory_pool()
gpumem.torch.set_options(hard_limit=64 << 20)
try:
    gpumem.torch.memory_pool()
except gpumem.Error as error:
    print(type(error).__name__, error)
""")
        self.assertIn("WrongState device 0 has a default pool already", found)


@unittest.skipUnless(HAS_BOTH, "needs PyTorch, CuPy and a GPU")
class GpuTest(unittest.TestCase):
    def test_tensors_and_arrays_share_a_pool(self):
        found = run(
            """
import cupy, torch, gpumem.cupy, gpumem.torch
gpumem.torch.install()
gpumem.cupy.install()
tensor = torch.ones(1 << 20, device="cuda")
array = cupy.ones(1 << 20, dtype="float32")
torch.cuda.synchronize()
pools = [gpumem.torch.memory_pool().status(), gpumem.cupy.memory_pool().status()]
print(float(tensor.sum()) + float(array.sum()), *(pool.in_use_bytes >= 8 << 20 for pool in pools))
""",
            modules="",
        )
        self.assertEqual(found, "2097152.0 True True")


if __name__ == "__main__":
    unittest.main()
