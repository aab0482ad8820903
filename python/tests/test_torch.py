"""The allocator for PyTorch: its functions with the installed PyTorch on the simulator, and whole programs on a GPU."""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import torch
except ImportError:
    torch = None

MIB = 1 << 20
HAS_GPU = torch is not None and torch.cuda.is_available()
ON_SIMULATOR = os.environ.get("GPUMEM_DRIVER") == "drop-in"


def run(code, **environment):
    """Runs Python code with gpumem installed, in a process of its own, and returns its output."""
    code = "import torch, gpumem, gpumem.torch\n" + code
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise AssertionError(f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    if "gpumem:" in done.stderr or "rror" in done.stderr:
        raise AssertionError(done.stderr)
    return done.stdout


@unittest.skipIf(torch is None, "PyTorch is not installed")
class ExceptionsTest(unittest.TestCase):
    def test_this_version_is_known(self):
        import gpumem.torch

        gpumem.torch._load()

    def test_another_version_is_refused(self):
        import gpumem.torch as module

        known = module._SYMBOLS
        module._SYMBOLS = ((known[0][0], known[0][1] + "X"), *known[1:])
        try:
            with self.assertRaises(module.Unsupported) as caught:
                module._exceptions()
        finally:
            module._SYMBOLS = known
        self.assertIn(f"PyTorch {torch.__version__} has no _ZN3c105Error", str(caught.exception))

    def test_a_class_that_does_not_fit_is_refused(self):
        import gpumem.torch as module

        entry = module._load()
        addresses = module._exceptions()
        # The type of `int`, which is no exception of PyTorch's.
        number = ctypes.cast(ctypes.CDLL("libstdc++.so.6")._ZTIi, ctypes.c_void_p).value
        self.assertEqual(entry.gpumem_torch_set_exceptions(*addresses[:2], number), 0)
        self.assertEqual(entry.gpumem_torch_set_exceptions(*addresses), 1)


@unittest.skipIf(torch is None, "PyTorch is not installed")
@unittest.skipUnless(ON_SIMULATOR, "for the simulator, where PyTorch itself does not start")
class FunctionsTest(unittest.TestCase):
    """PyTorch's runtime does not start on the simulator, so its calls are made by a small library."""

    @classmethod
    def setUpClass(cls):
        import gpumem.torch as module

        cls.module, cls.entry = module, module._load()
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        probe = Path(cls.folder.name) / "libprobe.so"
        libraries = [module.FOLDER, Path(torch.__file__).parent / "lib"]
        command = ["c++", "-std=c++17", "-O1", "-fPIC", "-shared", str(Path(__file__).parent / "probe.cpp"), "-o", str(probe)]
        command += [f"-L{folder}" for folder in libraries] + [f"-Wl,-rpath,{folder}" for folder in libraries]
        subprocess.run([*command, "-l:libgpumem_torch.so", "-l:libtorch_python.so"], check=True)
        # The interpreter's lock is held, and an exception of Python's is raised after the call.
        cls.probe = ctypes.PyDLL(str(probe))
        cls.probe.probe_alloc.restype = ctypes.c_void_p
        cls.probe.probe_alloc.argtypes = (ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        cls.probe.probe_record_stream.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        cls.probe.probe_begin_pool.argtypes = (ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p)
        cls.probe.probe_end_pool.argtypes = cls.probe.probe_release_pool.argtypes = (ctypes.c_int, ctypes.c_uint64)
        cls.entry.gpumem_torch_free.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        cls.cuda = ctypes.CDLL("libcuda.so.1")
        cls.pool = module.memory_pool("cuda:0")
        context = ctypes.c_void_p()
        cls.driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        cls.driver("cuCtxSetCurrent", context)

    @classmethod
    def driver(cls, name, *arguments):
        code = getattr(cls.cuda, name)(*arguments)
        if code != 0:
            raise AssertionError(f"{name} returned {code}")

    def new_stream(self):
        stream = ctypes.c_void_p()
        self.driver("cuStreamCreate", ctypes.byref(stream), 1)
        return stream

    def alloc(self, size, stream=None):
        return self.probe.probe_alloc(size, 0, stream)

    def free(self, address, stream=None):
        self.entry.gpumem_torch_free(address, 0, 0, stream)
        self.assertEqual(self.entry.gpumem_torch_failed_frees(), 0)

    def in_use(self):
        return self.pool.status().in_use_bytes

    def test_memory_is_allocated_and_freed(self):
        address = self.alloc(MIB)
        self.assertEqual(address % 512, 0)
        self.assertEqual(self.in_use(), MIB)
        self.free(address)
        self.assertEqual(self.in_use(), 0)
        self.assertIsNone(self.alloc(0))

    def test_a_part_sleeps_between_steps(self):
        part = self.pool.part("optimizer")
        addresses = []
        for step in range(3):
            part.wake()
            with self.module.part("optimizer", "cuda:0"):
                if step == 0:
                    addresses = [self.alloc(3 * MIB) for _ in range(2)]
                self.free(self.alloc(2 * MIB))
            part.sleep()
            self.assertEqual(part.status().reserved_bytes, 0)
            self.assertGreaterEqual(part.status().asleep_bytes, 6 * MIB)
            # The next forward pass has the memory.
            self.free(self.alloc(16 * MIB))
        part.wake()
        self.assertEqual(part.status().in_use_bytes, 6 * MIB)
        for address in addresses:
            self.free(address)

    def test_a_part_sleeps_apart(self):
        with self.module.part("weights", "cuda:0") as weights:
            kept = self.alloc(6 * MIB)
            with self.module.part("cache", "cuda:0") as cache:
                lost = self.alloc(4 * MIB)
            self.assertEqual((weights.status().in_use_bytes, cache.status().in_use_bytes), (6 * MIB, 4 * MIB))
        self.assertEqual(self.in_use(), 0)
        weights.sleep()
        self.pool.part("cache").sleep("nothing")
        self.free(self.alloc(MIB))
        with self.module.part("weights", "cuda:0"), self.assertRaisesRegex(RuntimeError, "sleeps"):
            self.alloc(MIB)
        weights.wake()
        cache.wake()
        self.free(kept)
        self.free(lost)

    def test_lack_of_memory_is_pytorchs_exception(self):
        self.pool.set_hard_limit(64 * MIB)
        try:
            with self.assertRaises(torch.OutOfMemoryError) as caught:
                self.alloc(1 << 30)
        finally:
            self.pool.set_hard_limit(None)
        text = str(caught.exception)
        self.assertRegex(text, r"^CUDA out of memory\. Tried to allocate 1024\.00 MiB\. GPU 0 has a total capacity of [0-9.]+ GiB\.\n")
        self.assertIn("the limit of 64.000 MiB refused 1.000 GiB", text)
        self.assertGreaterEqual(self.pool.status().refusal_count, 1)
        with self.assertRaisesRegex(torch.OutOfMemoryError, "Tried to allocate more than 1EB memory"):
            self.alloc((1 << 60) + 1)
        self.free(self.alloc(1 << 30))

    def test_a_tensor_counts_for_its_line(self):
        self.module._name_lines(self.entry)
        try:
            address = self.alloc(MIB)
        finally:
            self.entry.gpumem_torch_name_lines(None)
        tags = {tag["tag"]: tag["in_use_bytes"] for tag in json.loads(self.pool.status_json())["tags"]}
        (name,) = (name for name in tags if name.startswith("test_torch.py:") and name.endswith(" alloc"))
        self.assertEqual(tags[name], MIB)
        self.free(address)

    def test_segments_are_null_without_memory(self):
        segment = self.entry.gpumem_torch_alloc_segment
        segment.restype, segment.argtypes = ctypes.c_void_p, (ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        self.pool.set_hard_limit(64 * MIB)
        self.assertIsNone(segment(1 << 30, 0, None))
        self.pool.set_hard_limit(None)
        self.free(segment(20 * MIB, 0, None))

    def test_other_failures_are_runtime_errors(self):
        with self.assertRaises(RuntimeError) as caught:
            self.probe.probe_alloc(MIB, 63, None)
        self.assertNotIsInstance(caught.exception, torch.OutOfMemoryError)
        self.assertIn("63", str(caught.exception))
        with self.assertRaises(RuntimeError):
            self.probe.probe_record_stream(4096, None)

    def test_a_recorded_stream_delays_the_reuse(self):
        side, size = self.new_stream(), 8 * MIB
        address = self.alloc(size)
        self.probe.probe_record_stream(address, side)
        self.free(address)
        self.driver("cuStreamSynchronize", side)
        self.driver("cuStreamSynchronize", None)
        self.free(self.alloc(size))
        self.assertEqual(self.in_use(), 0)

    def test_the_fraction_is_a_limit(self):
        fraction = self.entry.gpumem_torch_memory_fraction
        fraction.argtypes, fraction.restype = (ctypes.c_double, ctypes.c_int), None
        fraction(0.5, 0)
        status = self.pool.status()
        self.assertEqual(status.hard_limit_bytes, status.device_total_bytes // 2)
        self.pool.set_hard_limit(None)

    def test_the_cache_is_emptied(self):
        self.free(self.alloc(64 * MIB))
        self.assertGreaterEqual(self.pool.status().reserved_bytes, 64 * MIB)
        self.entry.gpumem_torch_empty_cache()
        self.assertEqual(self.pool.status().reserved_bytes, 0)

    def test_the_memory_of_a_capture_stays_until_its_pool_is_released(self):
        stream, graph, begun = self.new_stream(), ctypes.c_void_p(), self.in_use()
        self.probe.probe_begin_pool(0, 7, stream)
        self.driver("cuStreamBeginCapture_v2", stream, 0)
        address = self.alloc(MIB, stream)
        self.driver("cuMemsetD8Async", ctypes.c_uint64(address), 3, ctypes.c_size_t(MIB), stream)
        self.free(address, stream)
        self.assertEqual(self.alloc(MIB, stream), address, "reused within the capture")
        self.free(address, stream)
        outside = self.alloc(MIB)
        self.assertNotEqual(outside, address)
        self.entry.gpumem_torch_empty_cache()
        self.driver("cuStreamEndCapture", stream, ctypes.byref(graph))
        self.probe.probe_end_pool(0, 7)
        self.assertGreaterEqual(self.in_use(), begun + 2 * MIB)
        later = [self.alloc(MIB, stream) for _ in range(8)]
        self.assertNotIn(address, later)
        for other in [outside, *later]:
            self.free(other)
        self.driver("cuGraphDestroy", graph)
        self.probe.probe_release_pool(0, 7)
        self.assertEqual(self.in_use(), begun)

    def test_a_pool_of_two_graphs_stays_for_the_second(self):
        stream, begun = self.new_stream(), self.in_use()
        for _ in range(2):
            graph = ctypes.c_void_p()
            self.probe.probe_begin_pool(0, 9, stream)
            self.driver("cuStreamBeginCapture_v2", stream, 0)
            address = self.alloc(MIB, stream)
            self.driver("cuMemsetD8Async", ctypes.c_uint64(address), 3, ctypes.c_size_t(MIB), stream)
            self.free(address, stream)
            self.driver("cuStreamEndCapture", stream, ctypes.byref(graph))
            self.probe.probe_end_pool(0, 9)
            self.driver("cuGraphDestroy", graph)
        self.assertGreaterEqual(self.in_use(), begun + MIB)
        self.probe.probe_release_pool(0, 9)
        self.assertGreaterEqual(self.in_use(), begun + MIB)
        self.probe.probe_release_pool(0, 9)
        self.assertEqual(self.in_use(), begun)

    def test_captures_of_one_pool_share_their_memory(self):
        stream, begun, addresses = self.new_stream(), self.in_use(), set()
        for _ in range(3):
            graph = ctypes.c_void_p()
            self.probe.probe_begin_pool(0, 11, stream)
            self.driver("cuStreamBeginCapture_v2", stream, 0)
            address = self.alloc(MIB, stream)
            addresses.add(address)
            self.driver("cuMemsetD8Async", ctypes.c_uint64(address), 3, ctypes.c_size_t(MIB), stream)
            self.free(address, stream)
            self.driver("cuStreamEndCapture", stream, ctypes.byref(graph))
            self.probe.probe_end_pool(0, 11)
            self.driver("cuGraphDestroy", graph)
        self.assertEqual(len(addresses), 1)
        self.assertEqual(self.in_use(), begun + MIB)
        for _ in range(3):
            self.probe.probe_release_pool(0, 11)
        self.assertEqual(self.in_use(), begun)

    def test_a_retired_stream_may_come_back(self):
        stream = self.new_stream()
        self.free(self.alloc(MIB, stream), stream)
        self.entry.gpumem_torch_retire.argtypes = (ctypes.c_int, ctypes.c_void_p)
        self.assertEqual(self.entry.gpumem_torch_retire(0, stream), 0)
        self.driver("cuStreamDestroy_v2", stream)
        self.free(self.alloc(MIB, self.new_stream()))


@unittest.skipIf(torch is None, "PyTorch is not installed")
@unittest.skipUnless(ON_SIMULATOR, "for the simulator, where PyTorch itself does not start")
class InstallTest(unittest.TestCase):
    def test_pytorch_takes_the_allocator(self):
        out = run(
            "gpumem.torch.install(hard_limit=1 << 30)\n"
            "assert gpumem.torch.is_installed()\n"
            "try:\n    gpumem.torch.install()\n"
            "except gpumem.Error as problem:\n    print(problem)\n"
            "assert torch.cuda.memory_allocated() == 0\n"
            "assert gpumem.torch.memory_pool('cuda:0').status().hard_limit_bytes == 1 << 30\n"
            "figures = torch.cuda.memory.memory_stats_as_nested_dict\n"
            "torch.cuda.is_initialized = lambda: True\n"
            "assert figures('cuda:0')['reserved_bytes']['all'] == {'current': 0, 'peak': 0}\n"
            "assert figures('cuda:0')['num_ooms'] == 0\n"
            "torch.cuda.reset_accumulated_memory_stats('cuda:0')\n"
            "assert figures('cuda:0')['allocation']['all'] == {'current': 0, 'allocated': 0, 'freed': 0}\n"
            "total = gpumem.torch.memory_pool('cuda:0').status().device_total_bytes\n"
            "assert torch.cuda.get_per_process_memory_fraction('cuda:0') == (1 << 30) / total\n"
            "print(torch.cuda.memory_summary('cuda:0'))\n"
        )
        self.assertIn("gpumem is installed already", out)
        self.assertIn("Memory limit: hard = 1.000 GiB", out)


@unittest.skipUnless(HAS_GPU, "PyTorch has no GPU here")
class ProgramsTest(unittest.TestCase):
    """Programs that use PyTorch as everybody does."""

    def test_tensors_hold_their_values(self):
        out = run(
            "gpumem.torch.install()\n"
            "x = torch.arange(1 << 20, device='cuda', dtype=torch.float64)\n"
            "y = (x * 2).sum().item()\n"
            "assert y == (1 << 20) * ((1 << 20) - 1), y\n"
            "assert torch.cuda.memory_allocated() >= 8 << 20\n"
            "assert torch.cuda.max_memory_reserved() >= torch.cuda.max_memory_allocated()\n"
            "del x; torch.cuda.empty_cache()\n"
            "assert torch.cuda.memory_reserved() == 0, torch.cuda.memory_reserved()\n"
            "torch.cuda.reset_peak_memory_stats()\n"
            "print(torch.cuda.memory_summary())\n"
        )
        self.assertIn("Memory pool backend: caching", out)

    def test_lack_of_memory_is_an_exception_and_the_program_goes_on(self):
        out = run(
            "gpumem.torch.install(hard_limit=1 << 30)\n"
            "held = torch.zeros(512 << 20, dtype=torch.uint8, device='cuda')\n"
            "try:\n    torch.empty(1 << 30, dtype=torch.uint8, device='cuda')\n"
            "except torch.OutOfMemoryError as error:\n    print(error)\n"
            "del held\n"
            "assert torch.ones(700 << 20, dtype=torch.uint8, device='cuda')[-1].item() == 1\n"
        )
        self.assertIn("the limit of 1.000 GiB refused 1.000 GiB", out)

    def test_optimizer_state_sleeps_between_steps(self):
        run(
            "gpumem.torch.install()\n"
            "def losses(sleeps):\n"
            "    torch.manual_seed(1)\n"
            "    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]).cuda()\n"
            "    adam = torch.optim.Adam(model.parameters(), lr=1e-4)\n"
            "    state, found, held = gpumem.torch.memory_pool().part('optimizer'), [], []\n"
            "    for step in range(4):\n"
            "        loss = model(torch.randn(64, 2048, device='cuda')).square().mean()\n"
            "        loss.backward()\n"
            "        state.wake()\n"
            "        with gpumem.torch.part('optimizer'):\n"
            "            adam.step()\n"
            "        adam.zero_grad()\n"
            "        if sleeps:\n"
            "            torch.cuda.synchronize()\n"
            "            state.sleep()\n"
            "        found.append(loss.item())\n"
            "        held.append(state.status().reserved_bytes)\n"
            "    state.wake()\n"
            "    return found, held\n"
            "plain, held = losses(False)\n"
            "assert all(size >= 128 << 20 for size in held), held\n"
            "slept, held = losses(True)\n"
            "assert plain == slept and not any(held), (plain, slept, held)\n"
        )

    def test_parts_sleep_apart_from_the_rest(self):
        run(
            "gpumem.torch.install()\n"
            "with gpumem.torch.part('weights') as weights:\n"
            "    model = torch.nn.Linear(4096, 4096).cuda()\n"
            "with gpumem.torch.part('cache') as cache:\n"
            "    keys = torch.ones(64 << 20, device='cuda')\n"
            "x = torch.ones(8, 4096, device='cuda')\n"
            "graph = torch.cuda.CUDAGraph()\n"
            "model(x); torch.cuda.synchronize()\n"
            "with torch.no_grad(), torch.cuda.graph(graph):\n    y = model(x)\n"
            "graph.replay()\n"
            "before, addresses = y.clone(), [p.data_ptr() for p in model.parameters()]\n"
            "torch.cuda.synchronize()\n"
            "free = torch.cuda.mem_get_info()[0]\n"
            "weights.sleep(); cache.sleep('nothing')\n"
            "assert torch.cuda.mem_get_info()[0] - free >= 300 << 20, torch.cuda.mem_get_info()[0] - free\n"
            "assert torch.ones(256 << 20, device='cuda').sum().item() == 256 << 20\n"
            "torch.cuda.empty_cache()\n"
            "weights.wake(); cache.wake()\n"
            "assert [p.data_ptr() for p in model.parameters()] == addresses and keys.sum().item() == 0\n"
            "y.zero_(); graph.replay()\n"
            "assert torch.equal(y, before)\n"
        )

    def test_the_fraction_limits(self):
        run(
            "gpumem.torch.install()\n"
            "torch.cuda.set_per_process_memory_fraction(0.01)\n"
            "total = torch.cuda.get_device_properties(0).total_memory\n"
            "try:\n    torch.empty(total // 50, dtype=torch.uint8, device='cuda')\n"
            "except torch.OutOfMemoryError:\n    pass\n"
            "else:\n    raise SystemExit('not refused')\n"
        )

    def test_a_recorded_stream_is_waited_for(self):
        run(
            "gpumem.torch.install()\n"
            "side = torch.cuda.Stream()\n"
            "for turn in range(200):\n"
            "    x = torch.full((1 << 22,), turn, device='cuda', dtype=torch.int32)\n"
            "    side.wait_stream(torch.cuda.current_stream())\n"
            "    with torch.cuda.stream(side):\n"
            "        torch.cuda._sleep(200_000)\n"
            "        y = x.clone()\n"
            "    x.record_stream(side); del x\n"
            "    z = torch.full((1 << 22,), -1, device='cuda', dtype=torch.int32)\n"
            "    torch.cuda.current_stream().wait_stream(side)\n"
            "    y.record_stream(torch.cuda.current_stream())\n"
            "    assert bool((y == turn).all()), turn\n"
        )

    def test_graphs_are_captured_and_replayed(self):
        run(
            "gpumem.torch.install()\n"
            "static = torch.zeros(1 << 20, device='cuda')\n"
            "warm = torch.cuda.Stream()\n"
            "with torch.cuda.stream(warm):\n"
            "    (static * 2 + 1).relu().sum()\n"
            "torch.cuda.synchronize()\n"
            "graph = torch.cuda.CUDAGraph()\n"
            "with torch.cuda.graph(graph):\n"
            "    result = (static * 2 + 1).relu().sum()\n"
            "for turn in range(20):\n"
            "    noise = [torch.full((1 << 20,), 1e9, device='cuda') for _ in range(8)]\n"
            "    static.fill_(turn)\n"
            "    graph.replay()\n"
            "    assert result.item() == (2 * turn + 1) * (1 << 20), (turn, result.item())\n"
            "    assert all(bool((one == 1e9).all()) for one in noise), turn\n"
            "used = torch.cuda.memory_allocated()\n"
            "del graph, result, noise\n"
            "import gc; gc.collect()\n"
            "assert torch.cuda.memory_allocated() < used\n"
        )

    def test_graphs_of_one_pool_share_their_memory(self):
        run(
            "gpumem.torch.install()\n"
            "x = torch.ones(1 << 22, device='cuda')\n"
            "graphs, results, used = [], [], []\n"
            "for turn in range(10):\n"
            "    graph = torch.cuda.CUDAGraph()\n"
            "    with torch.cuda.graph(graph, pool=graphs[0].pool() if graphs else None):\n"
            "        results.append(((x + turn) * 2 + 1).sum())\n"
            "    graphs.append(graph)\n"
            "    used.append(torch.cuda.memory_allocated())\n"
            "assert used[-1] - used[1] < 1 << 20 and used[-1] < 2 * used[0], used\n"
            "for _ in range(3):\n"
            "    for graph in graphs:\n        graph.replay()\n"
            "found = [result.item() / (1 << 22) for result in results]\n"
            "assert found == [2 * (1 + turn) + 1 for turn in range(10)], found\n"
        )

    def test_two_graphs_share_a_pool(self):
        run(
            "gpumem.torch.install()\n"
            "x = torch.ones(1 << 18, device='cuda')\n"
            "first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()\n"
            "with torch.cuda.graph(first):\n    a = x + 1\n"
            "with torch.cuda.graph(second, pool=first.pool()):\n    b = a * 3\n"
            "first.replay(); second.replay()\n"
            "assert b.sum().item() == 6 * (1 << 18)\n"
        )

    def test_a_pool_within_pytorchs_allocator(self):
        run(
            "before = torch.ones(1 << 20, device='cuda')\n"
            "with gpumem.torch.pool() as kept:\n"
            "    x = torch.ones(1 << 20, device='cuda')\n"
            "assert gpumem.torch.memory_pool().status().in_use_bytes >= 4 << 20\n"
            "assert torch.cuda.memory_allocated() >= 8 << 20\n"
            "with gpumem.torch.pool(kept):\n"
            "    y = x + before\n"
            "assert y.sum().item() == 2 << 20\n"
        )

    def test_a_limit_within_pytorchs_allocator(self):
        run(
            "gpumem.torch.set_options(hard_limit=64 << 20)\n"
            "with gpumem.torch.pool():\n"
            "    try:\n        torch.empty(128 << 20, dtype=torch.uint8, device='cuda')\n"
            "    except torch.OutOfMemoryError:\n        pass\n"
            "    else:\n        raise SystemExit('not refused')\n"
            "    assert torch.ones(1 << 20, device='cuda').sum().item() == 1 << 20\n"
        )

    def test_it_is_refused_too_late_and_twice(self):
        run(
            "x = torch.ones(1, device='cuda')\n"
            "try:\n    gpumem.torch.install()\n"
            "except RuntimeError as problem:\n    assert 'already initialized' in str(problem), problem\n"
            "else:\n    raise SystemExit('not refused')\n"
        )
        run(
            "gpumem.torch.install()\n"
            "try:\n    gpumem.torch.install()\n"
            "except gpumem.Error:\n    pass\n"
            "else:\n    raise SystemExit('not refused')\n"
        )

    def test_threads_and_backward(self):
        run(
            "import threading\n"
            "gpumem.torch.install()\n"
            "model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).cuda()\n"
            "def work():\n"
            "    with torch.cuda.stream(torch.cuda.Stream()):\n"
            "        for _ in range(30):\n"
            "            x = torch.randn(512, 256, device='cuda')\n"
            "            torch.autograd.grad(model(x).square().sum(), list(model.parameters()))\n"
            "torch.cuda.synchronize()\n"
            "threads = [threading.Thread(target=work) for _ in range(8)]\n"
            "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
            "torch.cuda.synchronize()\n"
        )

    def test_a_process_ends_cleanly_with_live_tensors(self):
        run(
            "gpumem.torch.install()\n"
            "import builtins\n"
            "builtins.kept = [torch.ones(1 << 20, device='cuda') for _ in range(10)]\n"
            "builtins.graph = torch.cuda.CUDAGraph()\n"
            "with torch.cuda.graph(builtins.graph):\n    builtins.out = builtins.kept[0] + 1\n"
        )


if __name__ == "__main__":
    unittest.main()
