"""PyTorch's allocator on gpumem (gpumem/_full), compiled against the installed PyTorch, on the simulator.

PyTorch itself does not start there, so a library with the same source makes requests with a device and a stream (full.cpp). Snapshots,
history, observers and checkpoints are called through PyTorch's own Python functions."""

import contextlib
import ctypes
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import unittest
from multiprocessing.pool import ThreadPool
from pathlib import Path

try:
    import torch
except ImportError:
    torch = None

MIB = 1 << 20
ON_SIMULATOR = os.environ.get("GPUMEM_DRIVER") == "drop-in"


def why_not():
    """Why the allocator cannot be compiled here; empty if it can."""
    if torch is None or torch.version.cuda is None:
        return "PyTorch for CUDA is not installed"
    from gpumem import _full

    try:
        _full.load()
    except _full.Unavailable as error:
        return str(error)
    return ""


@unittest.skipUnless(ON_SIMULATOR, "for the simulator")
@unittest.skipIf(torch is None, "PyTorch is not installed")
class BuildTest(unittest.TestCase):
    def setUp(self):
        from gpumem import _full

        self.full = _full
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_with(self, code, **environment):
        code = "import gpumem.torch as g\n" + code
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.folder), "GPUMEM_TORCH": "full", **environment}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_it_is_compiled_once(self):
        if reason := why_not():
            self.skipTest(reason)
        code = "g.install(); print(g.way()); import torch; print(torch.cuda.memory.get_allocator_backend())"
        first, second = self.run_with(code), self.run_with(code)
        expected = f"full, for PyTorch {torch.__version__}\ngpumem\n"
        self.assertEqual((first.stdout, second.stdout), (expected, expected))
        self.assertIn("compiling", first.stderr)
        self.assertNotIn("compiling", second.stderr)

    def test_processes_compile_it_together(self):
        if reason := why_not():
            self.skipTest(reason)
        code = "g.install(); print(g.way())"
        with ThreadPool(3) as threads:
            done = threads.map(lambda _: self.run_with(code), range(3))
        self.assertEqual({each.stdout for each in done}, {f"full, for PyTorch {torch.__version__}\n"})
        self.assertEqual(sum("compiling" in each.stderr for each in done), 1)
        self.assertEqual(len(list((self.folder / "gpumem/torch").glob("*.so"))), 1)

    def test_without_a_compiler_the_pluggable_class_serves(self):
        done = self.run_with("g.install(); print(g.way())", CXX="no-such-compiler")
        self.assertIn("pluggable, because there is no C++ compiler (no-such-compiler)", done.stdout)
        self.assertIn("gpumem: PyTorch's allocator is pluggable", done.stderr)

    def test_a_compiler_that_fails_is_named(self):
        done = self.run_with("g.install(); print(g.way())", CXX="false")
        self.assertIn("pluggable, because the compiler refuses the allocator", done.stdout)

    def test_the_pluggable_class_is_the_default(self):
        self.assertEqual(self.run_with("g.install(); print(g.way())", GPUMEM_TORCH="").stdout, "pluggable\n")

    def test_another_word_is_refused(self):
        code = "try:\n    g.install()\nexcept Exception as error:\n    print(error)"
        self.assertIn("invalid GPUMEM_TORCH='half'; set it to full or pluggable", self.run_with(code, GPUMEM_TORCH="half").stdout)

    def test_an_unknown_version_is_refused(self):
        known, self.full.LAST = self.full.LAST, (2, 10)
        self.addCleanup(setattr, self.full, "LAST", known)
        with self.assertRaisesRegex(self.full.Unavailable, "gpumem knows the allocator class of PyTorch 2.11 to 2.10"):
            self.full.load()


@unittest.skipUnless(ON_SIMULATOR, "for the simulator, where PyTorch itself does not start")
class AllocatorTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if reason := why_not():
            raise unittest.SkipTest(reason)
        import gpumem.torch as module
        from gpumem import _full

        module._load()
        cls.module = module
        path = _full.build(Path(__file__).parent / "full.cpp", ("libtorch_python.so",))
        # With Python's lock held, and the pending exception raised after each call.
        cls.full = ctypes.PyDLL(str(path))
        pointer, number = ctypes.c_void_p, ctypes.c_uint64
        for name, result, arguments in (
            ("allocate", pointer, (ctypes.c_size_t, ctypes.c_int, pointer)),
            ("free", None, (pointer,)),
            ("record_use", None, (pointer, pointer)),
            ("share", None, (pointer,)),
            ("record_history", None, (ctypes.c_int, ctypes.c_size_t, ctypes.c_char_p)),
            ("observe", ctypes.POINTER(ctypes.c_long), ()),
            ("largest", ctypes.c_size_t, (ctypes.c_int,)),
            ("init", None, (ctypes.c_int,)),
            ("retain_pool", None, (number, number)),
            ("use_count", ctypes.c_int, (number, number)),
            ("set_no_split", None, (number, number)),
            ("set_use_on_oom", None, (number, number)),
            ("begin_pool", None, (number, number, pointer)),
            ("end_pool", None, (number, number)),
            ("release_pool", None, (number, number)),
            ("track", ctypes.POINTER(ctypes.c_int), ()),
        ):
            function = getattr(cls.full, f"full_{name}")
            function.restype, function.argtypes = result, arguments
        cls.cuda = ctypes.CDLL("libcuda.so.1")
        cls.pool = module.memory_pool("cuda:0")
        context = ctypes.c_void_p()
        cls.driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        cls.driver("cuCtxSetCurrent", context)
        assert cls.full.gpumem_torch_full_install() == 1
        cls.full.full_init(1)
        # Later, PyTorch's own allocator would be the initialised one.
        assert cls.full.gpumem_torch_full_install() == 0

    @classmethod
    def driver(cls, name, *arguments):
        code = getattr(cls.cuda, name)(*arguments)
        if code != 0:
            raise AssertionError(f"{name} returned {code}")

    def setUp(self):
        self.stream = self.new_stream()
        self.next_id = getattr(type(self), "used_ids", 1000) + 1
        type(self).used_ids = self.next_id

        self.before_bytes = 0
        self.before_bytes = self.in_use()

    def tearDown(self):
        self.assertEqual(self.in_use(), 0)
        self.assertEqual(self.module._load().gpumem_torch_failed_frees(), 0)

    def new_stream(self):
        stream = ctypes.c_void_p()
        self.driver("cuStreamCreate", ctypes.byref(stream), 1)
        return stream

    def alloc(self, size, stream=None):
        return self.full.full_allocate(size, 0, stream or self.stream)

    def free(self, *addresses):
        for address in addresses:
            self.full.full_free(address)

    def in_use(self):
        return self.pool.status().in_use_bytes - self.before_bytes

    def stats(self):
        return torch._C._cuda_memoryStats(0)

    def pool_id(self):
        return (0, self.next_id)

    @contextlib.contextmanager
    def private(self, pool_id, stream=None):
        """Routes allocations on the stream to the pool, which keeps one use."""
        self.full.full_begin_pool(*pool_id, stream or self.stream)
        try:
            yield
        finally:
            self.full.full_end_pool(*pool_id)

    def segments(self, pool_id=None):
        segments = torch.cuda.memory_snapshot()
        return [segment for segment in segments if pool_id is None or segment["segment_pool_id"] == pool_id]

    def live(self, pool_id):
        from torch._inductor.cudagraph_trees import get_block_addrs

        return get_block_addrs(pool_id)

    # ------------------------------------------------------------------------------------------------------ the device's pool

    def test_memory_is_allocated_and_freed(self):
        address = self.alloc(MIB)
        self.assertEqual(address % 256, 0)
        self.assertEqual(self.in_use(), MIB)
        self.free(address)
        self.assertIsNone(self.alloc(0))
        self.free(None)

    def test_statistics(self):
        torch._C._cuda_resetAccumulatedMemoryStats(0)
        torch._C._cuda_resetPeakMemoryStats(0)
        address = self.alloc(64 * MIB)
        stats = self.stats()
        for name in ("allocated_bytes", "active_bytes", "requested_bytes"):
            self.assertEqual(stats[name]["all"]["current"], 64 * MIB, name)
            self.assertEqual(stats[name]["all"]["current"], sum(stats[name][part]["current"] for part in ("small_pool", "large_pool")))
        self.assertGreaterEqual(stats["reserved_bytes"]["all"]["current"], 64 * MIB)
        self.assertEqual(stats["allocation"]["all"]["allocated"], 1)
        self.free(address)
        stats = self.stats()
        self.assertEqual(stats["allocated_bytes"]["all"]["current"], 0)
        self.assertGreaterEqual(stats["allocated_bytes"]["all"]["peak"], 64 * MIB)
        self.assertEqual(stats["allocation"]["all"]["freed"], 1)
        torch._C._cuda_resetPeakMemoryStats(0)
        # Freed memory that a thread keeps ready counts for the peak.
        self.assertLess(self.stats()["allocated_bytes"]["all"]["peak"], 70 * MIB)

    def test_memory_fraction_and_out_of_memory(self):
        total = self.pool.status().device_total_bytes
        seen = self.full.full_observe()
        torch._C._cuda_setMemoryFraction(0.25, 0)
        self.addCleanup(torch._C._cuda_setMemoryFraction, 1.0, 0)
        self.assertEqual(torch._C._cuda_getMemoryFraction(0), 0.25)
        before = self.stats()["num_ooms"]
        with self.assertRaises(torch.OutOfMemoryError) as caught:
            self.alloc(total // 2)
        text = str(caught.exception)
        asked = f"{total / 2 / MIB:.2f} MiB" if total // 2 < 1 << 30 else f"{total / 2 / (1 << 30):.2f} GiB"
        self.assertIn(f"CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of", text)
        self.assertIn("→", text)
        self.assertEqual(self.stats()["num_ooms"], before + 1)
        self.assertEqual(seen[:3], [0, total // 2, total // 4])
        self.free(self.alloc(total // 5))
        with self.assertRaisesRegex(torch.OutOfMemoryError, "more than 1EB memory"):
            self.alloc(1 << 62)
        with self.assertRaisesRegex(RuntimeError, "invalid fraction"):
            torch._C._cuda_setMemoryFraction(1.5, 0)

    def test_the_cache_is_emptied(self):
        self.free(self.alloc(64 * MIB))
        self.assertGreaterEqual(self.pool.status().reserved_bytes, 64 * MIB)
        torch._C._cuda_emptyCache()
        self.assertLess(self.pool.status().reserved_bytes, 4 * MIB)

    def test_the_largest_request_counts_free_memory(self):
        total = self.pool.status().device_total_bytes
        address = self.alloc(total // 4)
        self.assertTrue(total // 2 < self.full.full_largest(0) <= total * 3 // 4)
        self.free(address)

    def test_memory_that_another_stream_uses_is_not_reused_early(self):
        other = self.new_stream()
        address = self.alloc(MIB)
        self.full.full_record_use(address, other)
        self.free(address)
        self.free(self.alloc(MIB))

    def in_threads(self, work):
        """Runs `work(allocate, free, stream)` on four threads at once, each with a stream, without Python's lock in the calls."""
        context = ctypes.c_void_p()
        self.driver("cuCtxGetCurrent", ctypes.byref(context))
        unlocked = ctypes.CDLL(self.full._name)
        allocate, free = unlocked.full_allocate, unlocked.full_free
        allocate.restype, allocate.argtypes, free.argtypes = ctypes.c_void_p, self.full.full_allocate.argtypes, (ctypes.c_void_p,)
        failures = []

        def run(stream):
            try:
                self.driver("cuCtxSetCurrent", context)
                work(lambda size: allocate(size, 0, stream), free, stream)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(self.new_stream(),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_threads(self):
        def work(allocate, free, _):
            for _ in range(200):
                for address in [allocate(size) for size in (512, 3000, MIB)]:
                    free(address)

        self.in_threads(work)

    def test_threads_in_private_pools_while_snapshots_are_taken(self):
        shared = self.pool_id()
        self.full.full_retain_pool(*shared)

        def work(allocate, free, stream):
            for turn in range(20):
                with self.private(shared, stream):
                    kept = [allocate(size) for size in (512, 3000, MIB, 3 * MIB)]
                    if turn % 10 == 0:
                        self.assertTrue(set(kept) <= set(self.live(shared)))
                self.full.full_release_pool(*shared)
                kept.append(allocate(5000))
                for address in kept:
                    free(address)

        with self.history(100):
            self.in_threads(work)
        self.full.full_release_pool(*shared)
        self.assertEqual(self.segments(shared), [])

    def test_sharing_between_processes_is_refused(self):
        address = self.alloc(MIB)
        with self.assertRaisesRegex(RuntimeError, "gpumem does not share CUDA tensors between processes"):
            self.full.full_share(address)
        self.free(address)

    # ------------------------------------------------------------------------------------------------------ history, snapshots

    @contextlib.contextmanager
    def history(self, entries_max=1000, skipped=b""):
        self.full.full_record_history(1, entries_max, skipped)
        try:
            yield
        finally:
            self.full.full_record_history(0, 1, b"")

    def test_a_snapshot_shows_the_pool(self):
        sizes = [3 * MIB, *range(1, 900, 50), 20 * MIB, 700]
        expected = {self.alloc(size): size for size in sizes}
        private = self.pool_id()
        with self.private(private):
            expected[self.alloc(4 * MIB)] = 4 * MIB
        segments = self.segments()
        blocks = {}
        for segment in segments:
            self.assertEqual(segment["total_size"], sum(block["size"] for block in segment["blocks"]))
            address = segment["address"]
            for block in segment["blocks"]:
                self.assertEqual(block["address"], address)
                if block["state"] == "active_allocated":
                    blocks[address] = block["requested_size"]
                address += block["size"]
        self.assertEqual(blocks, expected)
        self.assertEqual(sum(segment["total_size"] for segment in segments), self.pool.status().reserved_bytes)
        self.assertEqual(sum(segment["requested_size"] for segment in segments), sum(expected.values()))
        self.free(*expected)
        self.full.full_release_pool(*private)

    def test_history_has_stacks_and_opens_in_the_viewer(self):
        with self.history():
            kept, dropped = self.alloc(2 * MIB), self.alloc(MIB)
            self.free(dropped)
            snapshot = torch.cuda.memory._snapshot()
            with tempfile.NamedTemporaryFile() as file:
                torch.cuda.memory._dump_snapshot(file.name)
                loaded = pickle.loads(Path(file.name).read_bytes())
        self.assertEqual(len(loaded["segments"]), len(snapshot["segments"]))
        actions = [entry["action"] for entry in snapshot["device_traces"][0]]
        self.assertEqual(actions, ["alloc", "alloc", "free_requested", "free_completed", "snapshot"])
        alloc = snapshot["device_traces"][0][0]
        self.assertEqual((alloc["addr"], alloc["size"], alloc["stream"]), (kept, 2 * MIB, self.stream.value))
        self.assertIn("alloc", [frame["name"] for frame in alloc["frames"]])
        times = [entry["time_us"] for entry in snapshot["device_traces"][0]]
        self.assertEqual(times, sorted(times))
        block = next(block for segment in snapshot["segments"] for block in segment["blocks"] if block["address"] == kept)
        self.assertIn("test_history_has_stacks_and_opens_in_the_viewer", [frame["name"] for frame in block["frames"]])
        from torch.cuda import _memory_viz

        for show in (_memory_viz.trace_plot, _memory_viz.segment_plot, _memory_viz.segsum, _memory_viz.trace):
            self.assertTrue(show(snapshot))
        self.free(kept)

    def test_history_keeps_the_latest_entries_and_skips_actions(self):
        with self.history(3, b"free_completed"):
            for size in (512, 1024, 2048, 4096):
                self.free(self.alloc(size))
            entries = torch.cuda.memory._snapshot()["device_traces"][0]
        self.assertEqual([(entry["action"], entry["size"]) for entry in entries[:2]], [("alloc", 4096), ("free_requested", 4096)])
        self.assertEqual(len(entries), 3)
        self.assertFalse(torch._C._cuda_isHistoryEnabled())

    def test_history_notes_a_lack_of_memory(self):
        with self.history():
            with self.assertRaises(torch.OutOfMemoryError):
                self.alloc(1 << 50)
            entries = torch.cuda.memory._snapshot()["device_traces"][0]
        oom = next(entry for entry in entries if entry["action"] == "oom")
        self.assertEqual(oom["size"], 1 << 50)
        self.assertGreater(oom["device_free"], 0)

    def test_metadata(self):
        with self.history():
            torch._C._cuda_setMemoryMetadata("step 7")
            self.addCleanup(torch._C._cuda_setMemoryMetadata, "")
            self.assertEqual(torch._C._cuda_getMemoryMetadata(), "step 7")
            self.free(self.alloc(MIB))
            entry = torch.cuda.memory._snapshot()["device_traces"][0][0]
        self.assertEqual(entry.get("user_metadata"), "step 7")

    def test_trackers_see_segments_of_private_pools(self):
        seen, pool_id = self.full.full_track(), self.pool_id()
        before = list(seen[:9])
        with self.private(pool_id):
            address = self.alloc(MIB)
        self.free(address)
        self.full.full_release_pool(*pool_id)
        counts = [now - then for now, then in zip(seen[:9], before)]
        # alloc, free_requested, free_completed, segment_alloc, segment_free
        self.assertEqual(counts[:5], [1, 1, 1, 1, 1])

    # ---------------------------------------------------------------------------------------------------------- private pools

    def test_a_private_pool_has_the_segments_of_pytorch(self):
        for sizes, expected in (
            ([512], [2]),
            ([MIB, MIB], [2]),
            ([MIB, MIB, MIB], [2, 2]),
            ([MIB + 512], [20]),
            ([10 * MIB - 512] * 2, [20]),
            ([10 * MIB + 512] * 3, [12, 12, 12]),
        ):
            pool_id = self.pool_id()
            with self.private(pool_id):
                addresses = [self.alloc(size) for size in sizes]
            found = [segment["total_size"] // MIB for segment in self.segments(pool_id)]
            self.assertEqual(found, expected, sizes)
            self.assertEqual(self.stats()["requested_bytes"]["all"]["current"], sum(sizes))
            self.assertEqual(self.stats()["allocation"]["all"]["current"], len(sizes))
            self.free(*addresses)
            self.assertEqual(self.full.full_use_count(*pool_id), 1)
            self.full.full_release_pool(*pool_id)
            self.assertEqual(self.segments(pool_id), [])
            self.next_id += 1

    def test_tensors_outlive_their_pool(self):
        pool_id = self.pool_id()
        with self.private(pool_id):
            kept, dropped = self.alloc(30 * MIB), self.alloc(40 * MIB)
        self.free(dropped)
        self.full.full_release_pool(*pool_id)
        self.assertEqual(self.in_use(), 30 * MIB)
        self.free(kept)

    def test_pools_nest_and_count_their_uses(self):
        outer, inner = (0, self.next_id), (0, self.next_id + 1)
        type(self).used_ids += 1
        self.full.full_retain_pool(*outer)
        with self.private(outer):
            with self.private(inner):
                a = self.alloc(MIB)
            b = self.alloc(MIB)
        c = self.alloc(MIB)
        self.assertEqual((self.live(inner), self.live(outer)), ([a], [b]))
        self.assertEqual((self.full.full_use_count(*outer), self.full.full_use_count(*inner)), (2, 1))
        self.free(a, b, c)
        self.full.full_release_pool(*outer)
        self.assertEqual(self.full.full_use_count(*outer), 1)
        self.full.full_release_pool(*outer)
        self.full.full_release_pool(*inner)
        self.assertEqual(self.full.full_use_count(*outer), 0)

    def test_a_pool_that_does_not_split(self):
        pool_id = self.pool_id()
        self.full.full_retain_pool(*pool_id)
        self.full.full_set_no_split(*pool_id)
        with self.private(pool_id):
            addresses = [self.alloc(512), self.alloc(512)]
        self.assertEqual(len(self.segments(pool_id)), 2)
        self.free(*addresses)
        for _ in range(2):
            self.full.full_release_pool(*pool_id)

    def test_a_pool_serves_others_once_memory_is_short(self):
        pool_id = self.pool_id()
        self.full.full_retain_pool(*pool_id)
        with self.private(pool_id):
            self.free(self.alloc(80 * MIB))
        rest = self.pool.status().device_total_bytes
        self.pool.set_hard_limit(self.in_use() + 4 * MIB)
        self.addCleanup(self.pool.set_hard_limit, None)
        with self.assertRaises(torch.OutOfMemoryError):
            self.alloc(70 * MIB)
        self.full.full_set_use_on_oom(*pool_id)
        address = self.alloc(70 * MIB)
        self.assertEqual(self.live(pool_id), [address])
        self.free(address)
        for _ in range(2):
            self.full.full_release_pool(*pool_id)
        self.assertGreater(rest, 0)

    def test_another_stream_that_used_a_block_is_waited_for(self):
        pool_id, other = self.pool_id(), self.new_stream()
        with self.private(pool_id):
            address = self.alloc(MIB)
            self.full.full_record_use(address, other)
            self.free(address)
            # A wait would become part of a graph, so the block is free at the end.
            second = self.alloc(MIB)
            self.assertNotEqual(address, second)
            states = {block["state"] for segment in self.segments(pool_id) for block in segment["blocks"]}
            self.assertIn("active_pending_free", states)
        with self.private(pool_id):
            third = self.alloc(MIB)
        self.assertEqual(address, third)
        self.free(second, third)
        for _ in range(2):
            self.full.full_release_pool(*pool_id)

    def test_a_capture_allocates_from_its_pool(self):
        pool_id = self.pool_id()
        outside = self.alloc(MIB)
        self.full.full_begin_pool(*pool_id, self.stream)
        # Relaxed, as PyTorch's; begun without PyTorch.
        self.driver("cuStreamBeginCapture_v2", self.stream, 0)
        first = self.alloc(3 * MIB)
        self.free(first)
        second = self.alloc(3 * MIB)
        self.assertEqual(first, second)
        self.free(outside)
        graph = ctypes.c_void_p()
        self.driver("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self.full.full_end_pool(*pool_id)
        self.assertEqual(self.live(pool_id), [second])
        self.driver("cuGraphDestroy", graph)
        self.free(second)
        self.full.full_release_pool(*pool_id)

    # ------------------------------------------------------------------------------------------------------------ checkpoints

    def test_a_checkpoint_is_restored(self):
        pool_id = self.pool_id()
        with self.private(pool_id):
            a, b, c = (self.alloc(size) for size in (3 * MIB, 4 * MIB, 5 * MIB))
            small = self.alloc(512)
        self.free(b)
        state = torch._C._cuda_getCheckpointState(0, pool_id)
        live = {a, c, small}
        self.assertTrue(torch._C._cuda_checkPoolLiveAllocations(0, pool_id, live))
        self.assertFalse(torch._C._cuda_checkPoolLiveAllocations(0, pool_id, {a, c}))
        self.assertFalse(torch._C._cuda_checkPoolLiveAllocations(0, pool_id, {a, c, small, b}))
        self.assertEqual(set(self.live(pool_id)), live)
        before = self.segments(pool_id)
        # As after a replay: its tensors are freed, others are allocated elsewhere in the pool.
        self.free(a, c, small)
        with self.private(pool_id):
            self.free(self.alloc(15 * MIB), self.alloc(MIB))
        # A tensor at the address of `a`, as a graph's output, without a deleter until the checkpoint is restored.
        storage = torch._C._construct_storage_from_data_pointer(a, torch.device("cuda:0"), 3 * MIB)
        self.assertFalse(torch._C._has_Standard_Deleter(storage._cdata))
        torch._C._cuda_setCheckpointPoolState(0, state, [], [storage._cdata])
        self.assertTrue(torch._C._has_Standard_Deleter(storage._cdata))
        self.assertTrue(torch._C._cuda_checkPoolLiveAllocations(0, pool_id, live))
        after = [segment for segment in self.segments(pool_id) if segment["total_size"] in (2 * MIB, 20 * MIB)]
        shape = [[(block["address"], block["size"], block["state"]) for block in segment["blocks"]] for segment in after]
        self.assertEqual(shape, [[(b["address"], b["size"], b["state"]) for b in segment["blocks"]] for segment in before])
        with self.private(pool_id):
            self.assertEqual(self.alloc(4 * MIB), b)
        # The storage frees its block; the others are freed as graph trees do.
        del storage
        self.assertTrue(torch._C._cuda_checkPoolLiveAllocations(0, pool_id, {b, c, small}))
        for address in (b, c, small):
            torch._C._cuda_cudaCachingAllocator_raw_delete(address)
        for _ in range(3):
            self.full.full_release_pool(*pool_id)

    def test_stale_tensors_must_be_passed(self):
        pool_id = self.pool_id()
        with self.private(pool_id):
            self.alloc(MIB)
            state = torch._C._cuda_getCheckpointState(0, pool_id)
            self.alloc(MIB)
        with self.assertRaisesRegex(RuntimeError, "stale"):
            torch._C._cuda_setCheckpointPoolState(0, state, [], [])
        # PyTorch has dropped what it was given.
        self.assertTrue(torch._C._cuda_checkPoolLiveAllocations(0, pool_id, set()))
        self.full.full_release_pool(*pool_id)

    def test_mistakes_with_pools_are_errors(self):
        with self.assertRaisesRegex(RuntimeError, "gpumem has no private pool"):
            torch._C._cuda_getCheckpointState(0, (0, 999_999))
        pool_id = self.pool_id()
        with self.private(pool_id):
            state = torch._C._cuda_getCheckpointState(0, pool_id)
            with self.assertRaisesRegex(RuntimeError, "while it serves allocations"):
                torch._C._cuda_setCheckpointPoolState(0, state, [], [])
        self.full.full_release_pool(*pool_id)
        # As destructors may.
        self.full.full_release_pool(*pool_id)
        self.full.full_end_pool(*pool_id)

    def test_random_requests(self):
        import random

        choose = random.Random(7)
        pool_id = self.pool_id()
        streams = [self.stream, self.new_stream()]
        live, states = {}, []
        with self.private(pool_id):
            for turn in range(3000):
                if live and choose.random() < 0.5:
                    address = choose.choice(list(live))
                    if choose.random() < 0.2:
                        self.full.full_record_use(address, choose.choice(streams))
                    self.free(address)
                    del live[address]
                else:
                    size = choose.choice((512, 5000, MIB, 3 * MIB))
                    address = self.alloc(size)
                    self.assertNotIn(address, live)
                    for other, length in live.items():
                        self.assertTrue(address + size <= other or other + length <= address)
                    live[address] = size
                if turn % 500 == 0:
                    states.append((torch._C._cuda_getCheckpointState(0, pool_id), dict(live)))
                    self.assertTrue(torch._C._cuda_checkPoolLiveAllocations(0, pool_id, set(live)))
        self.free(*live)
        for state, expected in states:
            torch._C._cuda_setCheckpointPoolState(0, state, [], [])
            self.assertTrue(torch._C._cuda_checkPoolLiveAllocations(0, pool_id, set(expected)))
            self.free(*expected)
        self.full.full_release_pool(*pool_id)


if __name__ == "__main__":
    unittest.main()
