"""The package without PyTorch: on the simulator as libcuda.so.1, or on a GPU."""

import copy
import ctypes
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import capturing
import gpumem

MIB = 1 << 20


def run(code, **environment):
    """Runs Python code in a process of its own, and returns it."""
    environment = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)


def library_version():
    return gpumem.library.gpumem_version()


class PoolTest(unittest.TestCase):
    def setUp(self):
        self.pool = gpumem.Pool()
        self.stream = self.pool.stream()

    def tearDown(self):
        self.stream.close()
        self.pool.close()

    def test_peers_are_named(self):
        for peers in ("all", "none", [], [0]):
            with gpumem.Pool(peers=peers, conf="profile:tight") as pool, pool.stream() as stream, pool.alloc(MIB, stream):
                pass
        with self.assertRaises(gpumem.NoDevice):
            gpumem.Pool(peers=[99])
        with self.assertRaises(gpumem.InvalidArgument):
            gpumem.Pool(peers="some")
        with self.assertRaises(TypeError):
            gpumem.Pool(peers=["1"])

    def test_blocks_are_counted_and_freed(self):
        block = self.pool.alloc(MIB, self.stream)
        self.assertNotEqual(block.address, 0)
        self.assertEqual(block.address % 256, 0)
        self.assertEqual(self.pool.status().in_use_bytes, MIB)
        self.assertEqual(self.pool.status().block_count, 1)
        self.assertIn("Memory pool usage: 1.000 MiB", self.pool.status_text())
        block.free()
        block.free()
        self.assertEqual(self.pool.status().in_use_bytes, 0)
        with self.pool.alloc(3 * MIB, self.stream) as block:
            self.assertEqual(self.pool.status().in_use_bytes, 3 * MIB)
        self.pool.alloc(5 * MIB, self.stream)  # dropped at once
        self.assertEqual(self.pool.status().in_use_bytes, 0)
        self.assertEqual(self.pool.alloc(0, self.stream).address, 0)

    @unittest.skipUnless(os.environ.get("GPUMEM_DRIVER") == "drop-in", "calls the simulator's driver")
    def test_memory_of_other_libraries_is_counted_and_explained(self):
        from gpumem import _native

        cuda, address = capturing.stream()[0], ctypes.c_uint64()
        with gpumem.Pool(hard_limit="64MiB", conf="backend:native") as pool:
            # As another library in C does.
            self.assertEqual(_native.library.gpumem_pool_make_current(pool._handle), 0)
            self.assertEqual(cuda.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(8 * MIB), None), 0)
            status = pool.status()
            self.assertEqual((status.in_use_bytes, status.other_libraries_bytes), (0, 8 * MIB))
            report = pool.explain_refusal(96 * MIB)
            self.assertIn("the limit of 64.000 MiB refused 96.000 MiB", report)
            self.assertIn("hard_limit= of gpumem.Pool", report)
            self.assertRegex(report, "other libraries +8.000 MiB")
            self.assertNotRegex(report, "::|gpumem_pool")
            self.assertEqual(cuda.cuMemFreeAsync(address, None), 0)
            self.assertEqual(cuda.cuStreamSynchronize(None), 0)
            self.assertEqual(pool.status().other_libraries_bytes, 0)
            self.assertEqual(_native.library.gpumem_pool_end_current(pool._handle), 0)
        # Pools of the environment, too.
        self.pool.set_hard_limit("64MiB")
        self.assertIn("(Pool.set_hard_limit)", self.pool.explain_refusal(96 * MIB))
        with self.assertRaisesRegex(ValueError, "size is -1; expected a number from 0"):
            self.pool.explain_refusal(-1)

    def test_peaks_and_cached_memory(self):
        with self.pool.alloc(64 * MIB, self.stream):
            pass
        status = self.pool.status()
        self.assertGreaterEqual(status.in_use_peak_bytes, 64 * MIB)
        self.assertGreaterEqual(status.reserved_bytes, 64 * MIB)
        self.assertGreaterEqual(self.pool.reclaim(), 64 * MIB)
        self.assertEqual(self.pool.status().reserved_bytes, 0)
        self.pool.reset_peaks()
        self.assertEqual(self.pool.status().in_use_peak_bytes, 0)

    def test_a_refused_request_has_a_report(self):
        self.pool.set_hard_limit(32 * MIB)
        held = self.pool.alloc(20 * MIB, self.stream)
        with self.assertRaises(gpumem.OutOfMemory) as caught:
            self.pool.alloc(16 * MIB, self.stream)
        self.assertIsInstance(caught.exception, MemoryError)
        self.assertIn("the limit of 32.000 MiB refused 16.000 MiB", str(caught.exception))
        self.pool.set_hard_limit(None)
        self.pool.alloc(16 * MIB, self.stream).free()
        held.free()

    def test_a_callback_receives_the_report(self):
        reports = []
        with gpumem.Pool(hard_limit=8 * MIB, on_out_of_memory=reports.append) as pool, pool.stream() as stream:
            with self.assertRaises(gpumem.OutOfMemory) as caught:
                pool.alloc(16 * MIB, stream)
        self.assertEqual(reports, [str(caught.exception)])

    def test_limits_are_texts_too(self):
        total = self.pool.status().device_total_bytes
        for limit, expected in (("2GiB", 2 << 30), ("50%", total // 2), (" 64 MiB ", 64 * MIB), ("100M", 100_000_000)):
            with gpumem.Pool(hard_limit=limit, soft_limit="32MiB") as pool:
                self.assertEqual((pool.status().hard_limit_bytes, pool.status().soft_limit_bytes), (expected, 32 * MIB), limit)
            self.pool.set_hard_limit(limit)
            self.pool.set_soft_limit(limit)
            self.assertEqual((self.pool.status().hard_limit_bytes, self.pool.status().soft_limit_bytes), (expected, expected))
        self.pool.set_hard_limit("80%free")
        self.assertLess(self.pool.status().hard_limit_bytes, total)
        for limit in ("lots", "101%", "", "2GiB,backend:none", "50%used"):
            for call in (
                lambda: gpumem.Pool(hard_limit=limit),
                lambda: gpumem.Pool(soft_limit=limit),
                lambda: self.pool.set_hard_limit(limit),
                lambda: self.pool.set_soft_limit(limit),
            ):
                with self.assertRaisesRegex(gpumem.InvalidArgument, "invalid memory limit .*100M, 1.5GiB"):
                    call()
        for unlimited in (None, 0):
            with gpumem.Pool(hard_limit=unlimited) as pool:
                self.assertEqual(pool.status().hard_limit_bytes, 2**64 - 1)

    def test_texts_name_what_python_has(self):
        from gpumem import _native

        for interface, create, name in (
            (_native.PYTHON, "gpumem.Pool", "Pool"),
            (_native.PYTORCH, "gpumem.torch.install", "gpumem.torch.memory_pool()"),
            (_native.CUPY, "gpumem.cupy.install", "gpumem.cupy.memory_pool()"),
            (_native.RMM, "gpumem.rmm.install", "gpumem.rmm.memory_pool()"),
        ):
            reports = []
            with gpumem.Pool(hard_limit="64MiB", on_out_of_memory=reports.append, _interface=interface) as pool:
                with self.assertRaises(gpumem.OutOfMemory) as caught:
                    pool.alloc(96 * MIB, self.stream)
            for text in (str(caught.exception), *reports):
                self.assertIn(f"(hard_limit= of {create}, or {name}.set_hard_limit)", text)
                self.assertNotIn("::", text)
        # A pool of the environment, and errors that are no reports.
        with self.assertRaisesRegex(gpumem.OutOfMemory, r"\(Pool.set_hard_limit\)") as caught:
            self.pool.set_hard_limit("64MiB")
            self.pool.alloc(96 * MIB, self.stream)
        self.assertNotIn("::", str(caught.exception))
        with gpumem.Pool(conf="backend:caching") as pool:
            pool.sleep()
            with self.assertRaisesRegex(gpumem.WrongState, "sleeps; call Pool.wake before this call"):
                pool.alloc(1, self.stream)
        with self.assertRaisesRegex(gpumem.WrongState, "has no trace; set trace= of gpumem.Pool, or GPUMEM_TRACE"):
            self.pool.flush_trace()

    def test_texts_of_programs_keep_to_their_lines(self):
        hostile = "a\ninjected\r\x1b[31m\x7f\u202e\u2066\ufeff" * 4000

        def check(text):
            self.assertTrue(10 < len(text) < 20_000, len(text))
            self.assertNotRegex(text, r"\ninjected|[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2066\ufeff]")

        for option in ("conf", "hard_limit", "soft_limit", "peers", "trace"):
            with self.subTest(option), self.assertRaises(gpumem.InvalidArgument) as caught:
                gpumem.Pool(**{option: hostile})
            check(str(caught.exception))
        with gpumem.Pool(hard_limit="32MiB", on_out_of_memory=check) as pool, pool.part(hostile) as part, part.scope(hostile):
            kept = part.alloc(20 * MIB, self.stream)
            with self.assertLogs("gpumem"), pool.on_shortage(hostile, lambda is_last_resort: 1 / 0):
                with self.assertRaisesRegex(gpumem.OutOfMemory, "it returned 1") as caught:
                    part.alloc(16 * MIB, self.stream)
            for text in (str(caught.exception), part.explain_refusal(16 * MIB), part.status_text(), pool.status_text()):
                check(text)
            part.sleep()
            with self.assertRaises(gpumem.WrongState) as caught:
                part.alloc(1, self.stream)
            check(str(caught.exception))
            kept.free()

    def test_scopes_count_for_a_tag(self):
        with self.pool.scope("forward") as scope:
            held = self.pool.alloc(3 * MIB, self.stream)
            with self.pool.scope("layer") as inner:
                self.pool.alloc(MIB, self.stream).free()
            self.assertEqual((inner.usage.allocated_bytes, inner.usage.freed_bytes), (MIB, MIB))
        usage = scope.usage
        self.assertEqual((usage.allocated_bytes, usage.freed_bytes, usage.peak_bytes), (4 * MIB, MIB, 4 * MIB))
        self.assertEqual((usage.allocation_count, usage.free_count), (2, 1))
        self.assertRegex(self.pool.status_text(), "forward +3.000 MiB")
        self.pool.set_hard_limit("8MiB")
        with self.assertRaises(gpumem.OutOfMemory) as caught, self.pool.scope("backward"):
            self.pool.alloc(16 * MIB, self.stream)
        self.assertRegex(str(caught.exception), "tag `?backward")
        held.free()
        # In any order, and on their threads alone.
        first, second = self.pool.scope("a").__enter__(), self.pool.scope("b").__enter__()
        with self.assertRaises(gpumem.WrongState):
            first.__enter__()
        first.__exit__()
        second.__exit__()
        with self.assertRaisesRegex(gpumem.WrongState, "no open scope of that number"):
            second.__exit__()
        with self.assertRaisesRegex(ValueError, "zero byte"):
            self.pool.scope("a\0b")

    def test_a_holder_frees_what_it_can_do_without(self):
        for fails in (False, True):
            with gpumem.Pool(hard_limit="64MiB") as pool:
                cache, calls = [pool.alloc(48 * MIB, self.stream)], []

                def release(is_last_resort):
                    calls.append(is_last_resort)
                    if fails:
                        raise ValueError("on purpose")
                    if is_last_resort:
                        cache.clear()

                with pool.on_shortage("a cache", release) as holder:
                    if fails:
                        with self.assertLogs("gpumem"), self.assertRaisesRegex(gpumem.OutOfMemory, "a cache.*it returned 1"):
                            pool.alloc(32 * MIB, self.stream)
                        cache.clear()
                    else:
                        pool.alloc(32 * MIB, self.stream).free()
                    self.assertEqual(calls[:2], [False, True])
                calls.clear()
                with self.assertRaises(gpumem.OutOfMemory):
                    pool.alloc(65 * MIB, self.stream)
                self.assertEqual(calls, [])
                holder.close()

    def test_the_version(self):
        self.assertEqual(gpumem.__version__, ".".join(map(str, gpumem.version())))

    def test_structures_are_those_of_the_header(self):
        from gpumem import _native

        header = (Path(__file__).parents[2] / "crates/gpumem-capi/include/gpumem.h").read_text()
        for structure, name in (
            (gpumem.Status._structure, "gpumem_status"),
            (gpumem.ScopeUsage._structure, "gpumem_scope_usage"),
            (_native.PoolOptions, "gpumem_pool_options"),
        ):
            text = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL), re.DOTALL)
            self.assertEqual(re.findall(r"(\w+);", text[1]), [field for field, _ in structure._fields_], name)

    def test_mistakes_are_errors(self):
        with self.assertRaises(gpumem.InvalidArgument):
            gpumem.Pool(conf="profile:quick")
        with self.assertRaises(gpumem.NoDevice):
            gpumem.Pool(77)
        block = self.pool.alloc(MIB, self.stream)
        with self.assertRaises(gpumem.UnknownAddress):
            gpumem.Block(block.address + 256, 1).free()
        closed = gpumem.Pool()
        closed.close()
        with self.assertRaises(gpumem.InvalidHandle):
            closed.status()
        block.free()

    def test_numbers_out_of_range_are_errors(self):
        for value in (-1, -(1 << 40), 1 << 64):
            for call in (
                lambda: gpumem.Pool(hard_limit=value),
                lambda: gpumem.Pool(soft_limit=value),
                lambda: gpumem.Pool(value),
                lambda: gpumem.Pool.for_device(value),
                lambda: self.pool.alloc(value, self.stream),
                lambda: self.pool.set_hard_limit(value),
                lambda: self.pool.set_soft_limit(value),
                lambda: self.pool.trim(value),
                lambda: self.pool.flush_trace(value),
            ):
                with self.assertRaisesRegex(ValueError, f"is {value}; expected a number from 0 to"):
                    call()
        with self.assertRaises(TypeError):
            self.pool.alloc(1.5, self.stream)

    def test_the_soft_limit_and_trim(self):
        self.pool.alloc(64 * MIB, self.stream).free()
        self.stream.synchronize()
        self.assertGreaterEqual(self.pool.status().reserved_bytes, 64 * MIB)
        self.assertGreaterEqual(self.pool.trim(keep=32 * MIB), 32 * MIB)
        self.assertLessEqual(self.pool.status().reserved_bytes, 32 * MIB)
        self.pool.set_soft_limit(16 * MIB)
        self.assertEqual(self.pool.status().soft_limit_bytes, 16 * MIB)
        self.pool.alloc(64 * MIB, self.stream).free()
        self.stream.synchronize()
        self.assertLessEqual(self.pool.status().reserved_bytes, 16 * MIB)
        self.pool.trim()
        self.assertEqual(self.pool.status().reserved_bytes, 0)
        self.pool.set_soft_limit(None)
        self.assertEqual(self.pool.status().soft_limit_bytes, 2**64 - 1)

    def test_a_retired_stream_is_refused(self):
        block, default = self.pool.alloc(MIB, self.stream), self.pool.long_lived(2)
        self.assertEqual(default._handle.value, self.pool.long_lived(2)._handle.value)
        default.retire()
        for call in (default.retire, lambda: block.record_use(default), lambda: self.pool.alloc(1, default)):
            with self.assertRaisesRegex(gpumem.WrongState, "retired"):
                call()
        block.free()
        default.close()

    def test_a_pool_sleeps_and_wakes(self):
        with gpumem.Pool(conf="backend:caching") as pool, pool.alloc(6 * MIB, self.stream) as block:
            address = block.address
            for keep in ({}, {"keep": "host"}, {"keep": "nothing"}):
                pool.sleep(**keep)
                self.assertGreaterEqual(pool.status().asleep_bytes, 6 * MIB)
                self.assertEqual(pool.status().reserved_bytes, 0)
                with self.assertRaises(gpumem.WrongState):
                    pool.alloc(1, self.stream)
                pool.wake()
                pool.wake()
                self.assertEqual(pool.status().asleep_bytes, 0)
                self.assertEqual(block.address, address)
            with self.assertRaisesRegex(ValueError, 'expected "host" or "nothing"'):
                pool.sleep("disk")

    def test_a_part_sleeps_apart(self):
        with gpumem.Pool(conf="backend:caching") as pool, pool.part("weights") as weights, weights.alloc(6 * MIB, self.stream):
            pool.part("weights").sleep()
            self.assertGreaterEqual(weights.status().asleep_bytes, 6 * MIB)
            with self.assertRaises(gpumem.WrongState):
                weights.alloc(1, self.stream)
            pool.alloc(MIB, self.stream).free()
            weights.wake()
            self.assertEqual(weights.status().asleep_bytes, 0)
            with self.assertRaisesRegex(ValueError, "zero byte"):
                pool.part("we\0ights")

    def test_a_text_does_not_end_at_a_zero_byte(self):
        for options in ({"conf": "profile:fast\0,bogus:1"}, {"hard_limit": "1GiB\0"}, {"trace": "file\0name"}, {"peers": "none\0"}):
            with self.subTest(options), self.assertRaisesRegex(ValueError, f"{next(iter(options))} has a zero byte"):
                gpumem.Pool(**options)
        with self.assertRaisesRegex(ValueError, "limit has a zero byte"):
            self.pool.set_hard_limit("1GiB\0")

    def test_another_version_of_the_library_is_refused(self):
        from gpumem import _native

        _native.check_version(library_version())
        _native.check_version(_native.VERSION + 1)
        with self.assertRaises(ImportError):
            _native.check_version(_native.VERSION - 1)
        with self.assertRaises(ImportError):
            _native.check_version(_native.VERSION + 100)
        with self.assertRaisesRegex(ImportError, "has the version 1.2.3 and its Python files 0.1.0; install the wheel again"):
            _native.check_version(10_203)

    def test_a_recorded_use_delays_the_reuse(self):
        other = self.pool.stream()
        block = self.pool.alloc(MIB, self.stream)
        other.wait_for(self.stream)
        block.record_use(other)
        block.free()
        other.synchronize()
        self.stream.synchronize()
        other.close()
        self.assertEqual(self.pool.status().in_use_bytes, 0)

    def test_a_block_has_one_owner(self):
        with gpumem.Pool() as pool, pool.stream() as stream, pool.alloc(MIB, stream) as block:
            scope, holder = pool.scope("a"), pool.on_shortage("a cache", lambda is_last_resort: None)
            for owner in (block, pool, stream, scope, holder):
                for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
                    with self.assertRaisesRegex(TypeError, f"a {type(owner).__name__} cannot be copied or pickled, .*; pass the object"):
                        duplicate(owner)
            holder.close()
            with self.assertRaises(AttributeError):
                block.address = 0
            self.assertEqual(pool.status().block_count, 1)
        # Figures own nothing.
        self.assertEqual(repr(pickle.loads(pickle.dumps(pool_status := self.pool.status()))), repr(pool_status))

    def test_one_of_two_threads_frees_a_block(self):
        """A thread may be stopped between any two instructions of `free`."""
        stopped_at = []

        def stops(count):
            block, steps = self.pool.alloc(MIB, self.stream), iter(range(10_000))
            taken = []

            def trace(frame, event, argument):
                if frame.f_code is not gpumem.Block.free.__code__:
                    return None
                frame.f_trace_opcodes = True
                if event == "opcode" and next(steps) == count:
                    # The other thread, and a third one, which gets the memory.
                    stopped_at.append(count)
                    block.free()
                    taken.append(self.pool.alloc(MIB, self.stream))
                return trace

            before = sys.gettrace()
            sys.settrace(trace)
            try:
                block.free()
            finally:
                sys.settrace(before)
            for other in taken:
                other.free()

        for count in range(40):
            stops(count)
        self.assertGreater(len(stopped_at), 5)
        self.assertEqual(self.pool.status().block_count, 0)

    def test_a_use_after_the_free_is_an_error(self):
        block = self.pool.alloc(MIB, self.stream)
        block.free()
        with self.assertRaisesRegex(gpumem.UnknownAddress, "freed before; record its uses before the free"):
            block.record_use(self.stream)
        self.pool.alloc(0, self.stream).record_use(self.stream)

    def test_values_of_wrong_types_are_errors(self):
        for options in (
            {"conf": 5},
            {"conf": b"profile:fast"},
            {"hard_limit": 0.0},
            {"hard_limit": float("nan")},
            {"hard_limit": b""},
            {"soft_limit": []},
            {"trace": 7.5},
            {"peers": 1},
            {"peers": b"all"},
            {"on_out_of_memory": "print"},
        ):
            with self.subTest(options), self.assertRaises(TypeError):
                gpumem.Pool(**options)
        for call in (
            lambda: self.pool.scope(b"a"),
            lambda: self.pool.part(3),
            lambda: self.pool.on_shortage("a", None),
            lambda: self.pool.set_hard_limit(0.5),
        ):
            with self.assertRaises(TypeError):
                call()
        for options in ({"conf": "profile:\udc80"}, {"trace": "a\udcff"}, {"trace": b"a\xff"}, {"peers": "\ud800"}):
            with self.subTest(options), self.assertRaisesRegex(gpumem.InvalidArgument, "is not UTF-8 .*; pass a text"):
                gpumem.Pool(**options)
        for number in (-1, 1 << 64, (1 << 64) + self.stream.raw):
            for call in (self.pool.borrow, self.pool.long_lived, lambda number: gpumem.record_use(number, self.stream)):
                with self.assertRaisesRegex(gpumem.InvalidArgument, "expected a number from 0"):
                    call(number)

    def test_a_path_is_of_bytes_too(self):
        with tempfile.TemporaryDirectory() as folder:
            with gpumem.Pool(trace=os.fsencode(folder) + b"/a.trace") as pool, pool.alloc(MIB, self.stream):
                pool.flush_trace()
            self.assertEqual(os.listdir(folder), ["a.trace"])

    def test_what_is_closed_says_so(self):
        pool, stream = gpumem.Pool(), self.pool.stream()
        pool.close()
        stream.close()
        for call in (pool.status, pool.stream, pool.wake, lambda: pool.scope("a").__enter__(), lambda: pool.alloc(1, self.stream)):
            with self.assertRaisesRegex(gpumem.InvalidHandle, "the pool is null, or was closed; create a pool before this call"):
                call()
        for call in (stream.synchronize, lambda: self.pool.alloc(1, stream), lambda: stream.raw):
            with self.assertRaisesRegex(gpumem.InvalidHandle, "the stream is null, or was closed; create a stream before this call"):
                call()

    @unittest.skipUnless(os.environ.get("GPUMEM_DRIVER") == "drop-in", "calls the simulator's driver")
    def test_a_free_in_a_host_function(self):
        """The driver allows no calls there. The memory goes back with the next call."""
        launch = capturing.stream()[0].cuLaunchHostFunc
        for conf in ("backend:caching", "expandable_segments:false", "backend:native", "backend:none"):
            with self.subTest(conf), gpumem.Pool(hard_limit="64MiB", conf=conf) as pool, pool.stream() as stream:
                blocks, errors = [pool.alloc(30 * MIB, stream), pool.alloc(70_000, stream)], []

                def work(_):
                    blocks.pop().free()
                    blocks.clear()
                    try:
                        pool.alloc(40 * MIB, stream)
                    except gpumem.Error as error:
                        errors.append(error)

                function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(work)
                self.assertEqual(launch(ctypes.c_void_p(stream.raw), function, None), 0)
                stream.synchronize()
                self.assertRegex(str(errors), "DriverFailed.*called from a host function .*; let the host function wake another thread")
                self.assertEqual((pool.status().in_use_bytes, pool.status().block_count), (0, 0))
                # The limit has no room beside the memory of the freed blocks.
                pool.alloc(50 * MIB, stream).free()
                pool.reclaim()
                self.assertEqual(pool.status().reserved_bytes, 0)

    def test_streams_of_others(self):
        borrowed = self.pool.borrow(self.stream.raw)
        self.assertEqual(borrowed.raw, self.stream.raw)
        self.pool.alloc(MIB, borrowed).free()
        borrowed.close()
        first, second = self.pool.long_lived(0), self.pool.long_lived(0)
        self.assertEqual(first._handle.value, second._handle.value)
        self.pool.alloc(MIB, first).free()

    def test_threads(self):
        errors = []

        def work():
            try:
                with self.pool.stream() as stream:
                    for round in range(200):
                        self.pool.alloc(1024 * (1 + round % 7), stream).free()
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        self.assertEqual(self.pool.status().in_use_bytes, 0)

    def test_a_trace_is_recorded(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pool.trace"
            with gpumem.Pool(trace=path) as pool, pool.stream() as stream:
                pool.alloc(MIB, stream).free()
                pool.flush_trace()
                self.assertGreater(path.stat().st_size, 0)

    def test_a_trace_of_the_environment_is_flushed(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pool.trace"
            done = run(
                "import gpumem, os\n"
                "pool = gpumem.Pool()\n"
                "pool.alloc(1 << 20, pool.stream()).free()\n"
                "pool.flush_trace()\n"
                "assert os.path.getsize(os.environ['GPUMEM_TRACE']) > 40\n"
                "gpumem.Pool.for_device().flush_trace()\n",
                GPUMEM_TRACE=str(path),
            )
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_pools_share_a_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run-%p.trace"
            with gpumem.Pool(trace=path) as one, gpumem.Pool(trace=path) as two:
                for pool in (one, two):
                    pool.alloc(MIB, self.stream).free()
                    pool.flush_trace()
            self.assertEqual([file.name for file in Path(folder).iterdir()], [f"run-{os.getpid()}.trace"])

    def test_the_default_pool_is_one(self):
        one, two = gpumem.Pool.for_device(), gpumem.Pool.for_device()
        self.assertEqual(one._handle.value, two._handle.value)


class EnvironmentTest(unittest.TestCase):
    """Each program has an environment of its own."""

    def printed(self, code, **environment):
        done = run("import gpumem\n" + code, **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def test_variables_configure_what_arguments_leave_open(self):
        for code, limit in (
            ("gpumem.Pool()", 64 * MIB),
            ("gpumem.Pool(hard_limit=32 << 20)", 32 * MIB),
            ("gpumem.Pool(from_environment=False)", 2**64 - 1),
            ("gpumem.Pool.for_device()", 64 * MIB),
        ):
            found = self.printed(f"print({code}.status().hard_limit_bytes)", GPUMEM_HARD_LIMIT="64MiB")
            self.assertEqual(found, str(limit), code)

    def test_mistakes_in_variables_are_errors_of_their_own(self):
        for name, value, text in (
            ("GPUMEM_HARDLIMIT", "1GiB", "unknown environment variable GPUMEM_HARDLIMIT, did you mean GPUMEM_HARD_LIMIT?"),
            ("GPUMEM_HARD_LIMIT", "lots", 'invalid GPUMEM_HARD_LIMIT="lots": expected bytes'),
            ("GPUMEM_DRIVER", "cudda", 'invalid GPUMEM_DRIVER="cudda"; expected `cuda`'),
        ):
            for code in ("gpumem.Pool()", "gpumem.Pool.for_device()"):
                found = self.printed(
                    f"try:\n    {code}\n"
                    "except gpumem.InvalidEnvironment as error:\n    print(isinstance(error, gpumem.InvalidArgument), error)\n",
                    **{name: value},
                )
                self.assertTrue(found.startswith("True " + text), found)

    @unittest.skipUnless(os.environ.get("GPUMEM_DRIVER") == "drop-in", "a variable of the simulator")
    def test_mistakes_in_variables_of_the_simulator(self):
        for name in ("GPUMEM_SIM_SEDE", "GPUMEM_SIM_SEED"):
            done = run("import gpumem\ngpumem.Pool()", **{name: "lots"})
            self.assertRegex(done.stderr, "InvalidEnvironment: gpumem's simulator.*correct the variables GPUMEM_SIM_")
            self.assertIn(name, done.stderr)


class ProcessTest(unittest.TestCase):
    def test_import_needs_no_driver(self):
        if run("import ctypes; ctypes.CDLL('libcuda.so.1')", LD_LIBRARY_PATH="").returncode == 0:
            self.skipTest("a driver is installed here")
        done = run(
            "import gpumem\n"
            "assert gpumem.version() >= (0, 1, 0)\n"
            "try:\n    gpumem.Pool()\n"
            "except gpumem.NoDevice as error:\n    print(error)\n"
            "else:\n    raise SystemExit('a pool without a driver')\n",
            GPUMEM_DRIVER="drop-in",
            LD_LIBRARY_PATH="",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("libcuda.so.1", done.stdout)

    @unittest.skipUnless(os.environ.get("GPUMEM_DRIVER") == "drop-in", "a reset ends the contexts of all")
    def test_a_device_that_is_reset(self):
        done = run("""
import ctypes, gpumem
pool, default = gpumem.Pool(), gpumem.Pool.for_device()
stream = pool.stream()
kept = pool.alloc(1 << 20, stream)
pool.alloc(4096, stream).free()
assert ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxReset_v2(0) == 0
for call in (
    stream.synchronize, lambda: pool.alloc(4096, stream), lambda: default.alloc(4096, stream), pool.status, pool.stream, pool.reclaim,
):
    try:
        call()
    except gpumem.DeviceLost as error:
        assert "the device was reset" in str(error), error
    else:
        raise SystemExit("not lost")
for later in (gpumem.Pool(), gpumem.Pool.for_device()):
    with later.stream() as stream, later.alloc(4096, stream):
        assert later.status().in_use_bytes == 4096
    later.close()
kept.free()
pool.close()
""")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_an_interrupt_leaks_nothing(self):
        done = run(
            "import gpumem, os, signal, threading, time\n"
            "pool = gpumem.Pool()\n"
            "stream = pool.stream()\n"
            "armed = False\n"
            # One interrupt at a time, and none outside of the `try`.
            "def interrupted(*_):\n"
            "    global armed\n"
            "    if armed:\n"
            "        armed = False\n"
            "        raise KeyboardInterrupt\n"
            "signal.signal(signal.SIGINT, interrupted)\n"
            "def interrupt():\n"
            "    for _ in range(200):\n"
            "        time.sleep(0.002)\n"
            "        os.kill(os.getpid(), signal.SIGINT)\n"
            "thread, count = threading.Thread(target=interrupt), 0\n"
            "thread.start()\n"
            "while thread.is_alive():\n"
            "    try:\n"
            "        while thread.is_alive():\n"
            "            armed = True\n"
            "            pool.alloc(4096, stream).free()\n"
            "        armed = False\n"
            "    except KeyboardInterrupt:\n"
            "        count += 1\n"
            "assert count > 20 and pool.status().block_count == 0, (count, pool.status())\n"
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_end_of_an_object_runs_no_instructions(self):
        # An interrupt comes between two of them, such as before the first of a method.
        pool = gpumem.Pool()
        stream, part = pool.stream(), pool.part("part")
        owners = [pool.alloc(4096, stream), stream, part, pool]
        called = []
        sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
        del stream, part, pool
        while owners:
            del owners[0]
        sys.setprofile(None)
        self.assertEqual(called, [])
        with gpumem.Pool() as other:
            self.assertEqual(other.status().block_count, 0)

    def test_a_stream_of_another_type_is_refused(self):
        with gpumem.Pool() as pool, pool.stream() as stream, pool.alloc(4096, stream) as block:
            for wrong in (None, 0, stream.raw, pool, block):
                for call in (lambda: pool.alloc(1, wrong), lambda: stream.wait_for(wrong), lambda: block.record_use(wrong)):
                    with self.assertRaisesRegex(TypeError, f"the stream is of the type {type(wrong).__name__}; pass a gpumem.Stream"):
                        call()

    def test_a_process_ends_cleanly_with_live_blocks(self):
        done = run(
            "import gpumem, threading\n"
            "pool = gpumem.Pool(); stream = pool.stream()\n"
            "blocks = [pool.alloc(1 << 20, stream) for _ in range(10)]\n"
            "thread = threading.Thread(target=lambda: blocks.append(pool.alloc(1 << 20, stream)))\n"
            "thread.start(); thread.join()\n"
        )
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        self.assertEqual(done.stderr, "")


if __name__ == "__main__":
    unittest.main()
