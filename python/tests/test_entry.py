"""The functions that PyTorch calls, in a program without PyTorch on the simulator."""

import ctypes
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from pathlib import Path
from unittest import mock

import gpumem
from gpumem._native import FOLDER

REPOSITORY = Path(__file__).parents[2]
C_TESTS = REPOSITORY / "crates/gpumem-capi/tests/c"
HEADERS = REPOSITORY / "crates/gpumem-capi/include"


@unittest.skipUnless(os.environ.get("GPUMEM_DRIVER") == "drop-in", "calls the simulator's driver")
@unittest.skipUnless(shutil.which("c++"), "no C++ compiler")
class EntryTest(unittest.TestCase):
    def test_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            program, trace = Path(folder) / "entry", Path(folder) / "run-%p.trace"
            command = ["c++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", str(Path(__file__).parent / "entry.cpp"), "-o", str(program)]
            command += [f"-I{C_TESTS}", f"-I{HEADERS}", f"-L{FOLDER}", f"-Wl,-rpath,{FOLDER}"]
            subprocess.run([*command, "-l:libgpumem_torch.so", "-l:libgpumem.so.0", "-lpthread", "-ldl"], check=True)
            for seed in range(3):
                environment = {**os.environ, "GPUMEM_SIM_DEVICES": "2", "GPUMEM_SIM_SEED": str(seed)}
                done = subprocess.run([program, trace], env=environment, capture_output=True, text=True, timeout=300)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "entry: ok\n", ""))
            self.assertEqual(len(list(Path(folder).glob("run-*.trace"))), 3)


class ModuleTest(unittest.TestCase):
    """gpumem.torch without PyTorch: a module of its name has the device."""

    @classmethod
    def setUpClass(cls):
        torch = types.SimpleNamespace(__version__="0", cuda=types.SimpleNamespace(current_device=lambda: 0))
        before = sys.modules.pop("gpumem.torch", None)
        with mock.patch.dict(sys.modules, {"torch": torch}):
            cls.module = importlib.import_module("gpumem.torch")
        sys.modules.pop("gpumem.torch", None)
        if before is not None:
            sys.modules["gpumem.torch"] = before
        cls.module._entry = cls.entry = ctypes.CDLL(str(FOLDER / "libgpumem_torch.so"))
        cls.entry.gpumem_torch_memory_fraction.argtypes = (ctypes.c_double, ctypes.c_int)
        cls.entry.gpumem_torch_use_pool.argtypes = (ctypes.c_int, ctypes.c_void_p)
        cls.entry.gpumem_torch_use_pool.restype = cls.entry.gpumem_torch_alloc.restype = ctypes.c_void_p
        cls.entry.gpumem_torch_alloc.argtypes = (ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        cls.entry.gpumem_torch_free.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)

    def test_counts_are_reset(self):
        pool, stats = self.module.memory_pool(), self.module.memory_stats
        with pool.stream() as stream, pool.alloc(1 << 20, stream):
            self.module.reset_accumulated_memory_stats()
            self.assertEqual(stats()["allocation"]["all"], {"current": 1, "allocated": 0, "freed": 0})
            pool.alloc(1 << 20, stream).free()
            pool.set_hard_limit(64 << 20)
            with self.assertRaises(gpumem.OutOfMemory):
                pool.alloc(1 << 30, stream)
            pool.set_hard_limit(None)
            self.assertEqual(stats()["allocation"]["all"], {"current": 1, "allocated": 1, "freed": 1})
            self.assertEqual(stats()["num_ooms"], 1)
            self.module.reset_accumulated_memory_stats()
            self.assertEqual(stats()["num_ooms"], 0)
            self.assertEqual(stats()["allocated_bytes"]["all"]["current"], 1 << 20)

    def test_a_device_that_is_not_there(self):
        for ordinal in (-1, 1, 64, 1 << 20):
            with mock.patch.object(self.module, "_ordinal", lambda device: ordinal), self.assertRaisesRegex(gpumem.NoDevice, "device"):
                self.module.memory_pool()

    def test_a_part_serves_its_thread(self):
        size, pool = 6 << 20, self.module.memory_pool()
        addresses = {}

        def alloc(name):
            addresses[name] = self.entry.gpumem_torch_alloc(size, 0, None)

        def in_use(of):
            return of.status().in_use_bytes // size

        before = in_use(pool)
        with self.module.part("weights") as weights:
            alloc("weights")
            with self.module.part("cache") as cache:
                alloc("cache")
            alloc("weights again")
            thread = threading.Thread(target=alloc, args=("thread",))
            thread.start()
            thread.join()
        alloc("pool")
        self.assertEqual((in_use(weights), in_use(cache), in_use(pool) - before), (2, 1, 2))
        weights.sleep()
        self.assertEqual((weights.status().reserved_bytes, cache.status().asleep_bytes), (0, 0))
        with self.assertRaises(gpumem.WrongState), pool.stream() as stream:
            weights.alloc(1, stream)
        weights.wake()
        for address in addresses.values():
            self.entry.gpumem_torch_free(address, size, 0, None)
        self.assertEqual((in_use(weights), in_use(cache), in_use(pool)), (0, 0, before))

    def test_parts_are_left_in_any_order(self):
        """Tasks of one thread take turns, and generators end on other threads."""
        size, pool = 6 << 20, self.module.memory_pool()

        def alloc():
            self.entry.gpumem_torch_free(self.entry.gpumem_torch_alloc(size, 0, None), size, 0, None)

        def counts(*pools):
            return [of.status().allocation_count for of in pools]

        first, second = self.module.part("first"), self.module.part("second")
        parts = [first.__enter__(), second.__enter__()]
        before = counts(*parts)
        first.__exit__(None, None, None)
        alloc()
        self.assertEqual(counts(*parts), [before[0], before[1] + 1])
        second.__exit__(None, None, None)
        before = counts(pool)
        alloc()
        self.assertEqual(counts(pool), [before[0] + 1])

        left, errors = self.module.part("first"), []
        part = left.__enter__()

        def leave():
            try:
                left.__exit__(None, None, None)
            except gpumem.WrongState as error:
                errors.append(str(error))

        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
        self.assertRegex(str(errors), "the part 'first' was left on another thread.*; leave it on the thread that entered it")
        before = counts(part)
        alloc()
        self.assertEqual(counts(part), [before[0] + 1])
        self.module._used.__dict__.clear()
        self.entry.gpumem_torch_use_pool(0, None)

    def test_install_keeps_the_options_of_before(self):
        self.module.set_options(hard_limit="1GiB")
        texts = []
        with mock.patch.object(self.module, "set_options", lambda **options: texts.append(options)):
            for options in ({}, {"peers": "none"}):
                # The module that stands in for PyTorch has no allocators.
                with self.assertRaises(AttributeError):
                    self.module.install(**options)
        self.assertEqual(texts, [{"peers": "none"}])
        self.module.set_options()

    def test_fractions(self):
        pool = self.module.memory_pool()
        for fraction in (0.5, 0.0, 1.0):
            self.entry.gpumem_torch_memory_fraction(fraction, 0)
            self.assertEqual(self.module.memory_fraction(), fraction)
        pool.set_hard_limit(None)

    def test_mistakes(self):
        with self.assertRaisesRegex(ValueError, "hard_limit is -1; expected"):
            self.module.set_options(hard_limit=-1)
        self.module._check_versions(100, 100)
        self.module._check_versions(100, 101)
        with self.assertRaisesRegex(gpumem.Unsupported, "needs the version 0.1.0 of gpumem's library, and this process has loaded 0.2.0"):
            self.module._check_versions(100, 200)

    def test_a_stream_that_is_retired(self):
        with self.module.memory_pool().stream() as stream:
            self.module.retire_stream(types.SimpleNamespace(device_index=0, cuda_stream=2))
            self.entry.gpumem_torch_retire.argtypes = (ctypes.c_int, ctypes.c_void_p)
            self.assertEqual(self.entry.gpumem_torch_retire(0, stream.raw), 0)


if __name__ == "__main__":
    unittest.main()
