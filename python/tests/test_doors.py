"""The device's default pool: PyTorch, CuPy and RMM on gpumem share it. Each program has a process of its own."""

import os
import tempfile
import unittest
from pathlib import Path

import standin

try:
    import cupy
    import torch

    HAS_BOTH = cupy.cuda.runtime.getDeviceCount() > 0 and torch.cuda.is_available()
except Exception:
    HAS_BOTH = False

MODULES = """
import ctypes, sys, types
import gpumem, standin
from gpumem._native import FOLDER, library

standin.load()
sys.modules["torch"] = types.SimpleNamespace(__version__="0", cuda=types.SimpleNamespace(current_device=lambda: 0))
import gpumem.cupy, gpumem.torch
gpumem.torch._entry = ctypes.CDLL(str(FOLDER / "libgpumem_torch.so"))
entry = gpumem.torch._entry
entry.gpumem_torch_set_options.argtypes = (*(ctypes.c_char_p,) * 5, *(ctypes.c_void_p,) * 2)
entry.gpumem_torch_set_options.restype = None
"""


# By library, what `pool` and `alloc(size)` are, and `free(kept)`, which frees the only memory of a list.
LIBRARIES = {
    "torch": """
entry.gpumem_torch_alloc.restype = ctypes.c_void_p
entry.gpumem_torch_alloc.argtypes = (ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
gpumem.torch.set_options(**options)
pool = gpumem.torch.memory_pool()
entry.gpumem_torch_free.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
def alloc(size):
    return entry.gpumem_torch_alloc(size, 0, None)
def free(kept):
    entry.gpumem_torch_free(kept.pop(), 1, 0, None)
""",
    "cupy": """
gpumem.cupy.set_options(**options)
pool = gpumem.cupy.memory_pool()
alloc = gpumem.cupy.allocator
def free(kept):
    kept.clear()
""",
    "rmm": """
resources = []
sys.modules["rmm"] = types.SimpleNamespace(mr=types.SimpleNamespace(
    CallbackMemoryResource=lambda *functions: functions,
    set_per_device_resource=lambda ordinal, functions: resources.append(functions),
))
import gpumem.rmm
gpumem.rmm.install(0, **options)
pool = gpumem.rmm.memory_pool(0)
default = types.SimpleNamespace(__cuda_stream__=lambda: (0, 0))
def alloc(size):
    return resources[0][0](size, default)
def free(kept):
    resources[0][1](kept.pop(), 1, default)
""",
}


def run(code, modules=MODULES, **environment):
    done = standin.run(modules + code, **environment)
    if done.returncode != 0:
        raise AssertionError(f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout.strip()


@unittest.skipUnless(os.environ.get("GPUMEM_DRIVER") == "drop-in", "modules of their names stand in for the libraries")
@unittest.skipIf(standin.missing(), standin.missing())
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

    def test_the_environment_is_left_out(self):
        for library in ("cupy", "rmm"):
            code = f"options = dict(from_environment=False)\n{LIBRARIES[library]}\nprint(pool.status().hard_limit_bytes)"
            self.assertEqual(run(code, GPUMEM_HARD_LIMIT="64MiB"), str(2**64 - 1), library)

    def test_options_that_come_too_late_are_refused(self):
        found = run("""
gpumem.torch.memory_pool()
gpumem.cupy.set_options(hard_limit=64 << 20)
try:
    gpumem.cupy.memory_pool()
except gpumem.Error as error:
    print(type(error).__name__, error)
""")
        self.assertIn("WrongState device 0 already has a default pool", found)
        self.assertIn("the first of", found)
        found = run("""
gpumem.cupy.memory_pool()
gpumem.torch.set_options(hard_limit=64 << 20)
try:
    gpumem.torch.memory_pool()
except gpumem.Error as error:
    print(type(error).__name__, error)
""")
        self.assertIn("WrongState device 0 already has a default pool", found)


@unittest.skipUnless(os.environ.get("GPUMEM_DRIVER") == "drop-in", "modules of their names stand in for the libraries")
@unittest.skipIf(standin.missing(), standin.missing())
class FeaturesTest(unittest.TestCase):
    """What a pool has for a program in Rust, it has as an allocator of other libraries."""

    def check(self, code, options="{}", **environment):
        for name, library in LIBRARIES.items():
            with self.subTest(name):
                self.assertEqual(run(f"options = {options}\n{library}{code}\nprint('passed')", **environment), "passed")

    def test_limits(self):
        self.check("assert pool.status().hard_limit_bytes == 64 << 20", "dict(hard_limit='64MiB', soft_limit='50%')")
        self.check("pool.set_hard_limit('25%'); assert pool.status().hard_limit_bytes * 4 == pool.status().device_total_bytes")

    def test_variables(self):
        self.check("assert pool.status().hard_limit_bytes == 64 << 20", GPUMEM_HARD_LIMIT="64MiB")
        # What the options leave open.
        self.check("assert pool.status().hard_limit_bytes == 64 << 20", "dict(soft_limit='1MiB')", GPUMEM_HARD_LIMIT="64MiB")
        for code in LIBRARIES.values():
            tried = "options = {}\ntry:\n" + "".join(f"    {line}\n" for line in code.strip().splitlines())
            tried += "except gpumem.InvalidEnvironment as error:\n    print(error)\n"
            self.assertIn("did you mean GPUMEM_HARD_LIMIT?", run(tried, GPUMEM_HARDLIMIT="1GiB"))

    def test_names_that_are_no_options(self):
        for options in ("dict(hard_limits=None)", "dict(ordinal=0)", "dict(_interface=1)"):
            for name, library in LIBRARIES.items():
                code = "".join(f"    {line}\n" for line in library.split("pool =")[0].strip().splitlines())
                with self.subTest(name):
                    found = run(f"options = {options}\ntry:\n{code}except TypeError as error:\n    print(error)\n")
                    self.assertRegex(found, f"{options[5:].split('=')[0]}")

    def test_peers(self):
        """The default pools of two devices are open to each other, unless `peers` says otherwise."""
        for peers, is_open in (("None", True), ("'none'", False), ("[]", False), ("'all'", True), ("[1]", True)):
            self.check(
                f"""
cuda = ctypes.CDLL("libcuda.so.1")
address = alloc(4096)
address = getattr(address, "ptr", address)
other = gpumem.Pool.for_device(1).stream()
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1) == 0 and cuda.cuCtxSetCurrent(context) == 0
code = cuda.cuMemsetD8Async(ctypes.c_uint64(address), 1, ctypes.c_size_t(4096), ctypes.c_void_p(other.raw))
assert (code == 0) == {is_open}, code
other.synchronize()
""",
                f"dict(peers={peers})",
                GPUMEM_SIM_DEVICES="2",
            )

    def test_scopes(self):
        self.check("""
with pool.scope("forward") as scope:
    kept = alloc(1 << 20)
assert scope.usage.allocated_bytes == 1 << 20 and "forward" in pool.status_text(), pool.status_text()
""")

    def test_memory_sleeps(self):
        self.check(
            """
kept = alloc(6 << 20)
pool.sleep()
assert pool.status().asleep_bytes >= 6 << 20 and pool.status().reserved_bytes == 0
pool.wake()
assert pool.status().asleep_bytes == 0
""",
            "dict(conf='backend:caching')",
        )

    def test_a_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            options = f"dict(trace={folder!r} + '/%p.trace')"
            self.check("kept = alloc(1 << 20); pool.flush_trace()", options)
            files = list(Path(folder).iterdir())
            self.assertEqual(len(files), len(LIBRARIES))
            self.assertTrue(all(file.stat().st_size > 40 for file in files))

    def test_uses_on_other_streams(self):
        """The next work on the memory waits for them. Without the call, the simulator finds a race."""
        code = """
import capturing
cuda, other = capturing.stream()[0], pool.stream()
def filled(memory, stream):
    address = getattr(memory, "ptr", memory)
    assert cuda.cuMemsetD8Async(ctypes.c_uint64(address), 1, ctypes.c_size_t(1 << 20), ctypes.c_void_p(stream)) == 0
    return address
kept = [alloc(1 << 20)]
other.wait_for(pool.long_lived(0))
address = filled(kept[0], other.raw)
if is_recorded:
    gpumem.record_use(address, other)
try:
    gpumem.record_use(address + 256, other)
except gpumem.UnknownAddress:
    pass
else:
    raise SystemExit("a use of no block")
free(kept)
kept.append(alloc(1 << 20))
filled(kept[0], 0)
other.synchronize()
"""
        for name, library in LIBRARIES.items():
            for is_recorded in (True, False):
                with self.subTest(name, is_recorded=is_recorded):
                    done = standin.run(f"{MODULES}options = {{}}\n{library}is_recorded = {is_recorded}\n{code}")
                    self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
                    self.assertEqual(done.stderr == "", is_recorded, done.stderr)
                    if not is_recorded:
                        self.assertRegex(done.stderr, "simulator has found.*\n.*race")

    def test_devices_without_a_link(self):
        """The memory of default pools is plain then, because the libraries copy by addresses."""
        code = """
import capturing
cuda, (one, two) = capturing.stream()[0], [gpumem.Pool.for_device(ordinal) for ordinal in (0, 1)]
assert pool.status_text() == one.status_text()
with two.stream() as stream, two.alloc(4096, stream) as block:
    stream.synchronize()
    kept = [alloc(4096)]
    address = getattr(kept[0], "ptr", kept[0])
    null = ctypes.c_void_p(None)
    assert cuda.cuMemsetD8Async(ctypes.c_uint64(address), 7, ctypes.c_size_t(4096), null) == 0
    assert cuda.cuMemcpyAsync(ctypes.c_uint64(block.address), ctypes.c_uint64(address), ctypes.c_size_t(4096), null) == 0
    assert cuda.cuStreamSynchronize(null) == 0
    found = (ctypes.c_ubyte * 4096)()
    assert cuda.cuMemcpyDtoH_v2(found, ctypes.c_uint64(block.address), ctypes.c_size_t(4096)) == 0
    assert bytes(found) == bytes([7]) * 4096
for found in (one, two):
    assert ("Plain segments: there is no link to device" in found.status_text()) == is_plain, found.status_text()
"""
        for options in ("{}", "dict(soft_limit='1GiB')"):
            self.check(f"is_plain = True\n{code}", options, GPUMEM_SIM_DEVICES="2", GPUMEM_SIM_LINKS="none")
            self.check(f"is_plain = False\n{code}", options, GPUMEM_SIM_DEVICES="2")

    def test_reports(self):
        # PyTorch's exception for lack of memory needs PyTorch: a request of the pool itself has the same report.
        self.check(
            """
kept = alloc(48 << 20)
try:
    with pool.stream() as stream:
        pool.alloc(32 << 20, stream)
except gpumem.OutOfMemory as error:
    assert reports == [str(error)], reports
    assert "hard_limit= of gpumem." in reports[0] and ".install" in reports[0] and "::" not in reports[0], reports
else:
    raise SystemExit("no refusal")
""",
            "dict(hard_limit='64MiB', on_out_of_memory=(reports := []).append)",
        )

    def test_memory_to_do_without(self):
        self.check(
            """
with pool.stream() as stream:
    cache = [pool.alloc(48 << 20, stream)]
    with pool.on_shortage("a cache", lambda is_last_resort: cache.clear()):
        kept = alloc(32 << 20)
assert cache == [] and pool.status().refusal_count == 0
""",
            "dict(hard_limit='64MiB')",
        )


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
