"""PyTorch's allocator on gpumem (GPUMEM_TORCH=full) in whole programs on a GPU, compared with PyTorch's own allocator."""

import os
import pickle
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import torch
except ImportError:
    torch = None

HAS_GPU = torch is not None and torch.cuda.is_available()

INSTALL = "import gpumem, gpumem.torch\ngpumem.torch.install()\nassert gpumem.torch.way().startswith('full'), gpumem.torch.way()\n"


def run(code, is_native=False, **environment):
    """Runs Python code in a process of its own, and returns its output."""
    code = "import torch\n" + ("" if is_native else INSTALL) + code
    environment = {**os.environ, "GPUMEM_TORCH": "full", **environment}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise AssertionError(f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


TRAINING = """
import hashlib
torch.manual_seed(3)
torch.use_deterministic_algorithms(True)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512), torch.nn.GELU()] * 4, torch.nn.Linear(512, 10)).cuda()
adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(20):
    loss = torch.nn.functional.cross_entropy(model(torch.randn(64 + step, 512, device='cuda')), torch.arange(64 + step, device='cuda') % 10)
    adam.zero_grad()
    loss.backward()
    adam.step()
digest = hashlib.sha256(b''.join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest()
print(loss.item(), digest)
"""

# Two sizes, so that the tree of graphs has branches; the outputs of one call are the inputs of the next.
COMPILED = """
import torch._inductor.config
torch._inductor.config.triton.slow_path_cudagraph_asserts = True
torch.manual_seed(5)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256), torch.nn.ReLU()] * 3).cuda()
compiled = torch.compile(model, mode='reduce-overhead')
sums = []
with torch.no_grad():
    for turn in range(12):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.full((8 if turn % 3 else 16, 256), turn / 12, device='cuda')
        y = compiled(x)
        z = compiled(y.clone())
        kept = z + y
        sums.append((y.sum().item(), kept.sum().item()))
for turn in range(4):
    torch.compiler.cudagraph_mark_step_begin()
    loss = compiled(torch.full((32, 256), turn / 4, device='cuda')).square().mean()
    loss.backward()
    sums.append((loss.item(), model[0].weight.grad.sum().item()))
pools = {segment['segment_pool_id'] for segment in torch.cuda.memory_snapshot()}
assert pools > {(0, 0)}, 'there are no graphs'
print(sums)
"""


@unittest.skipUnless(HAS_GPU, "PyTorch has no GPU here")
@unittest.skipIf(os.environ.get("GPUMEM_DRIVER") == "drop-in", "for a GPU")
class FullTest(unittest.TestCase):
    def test_a_training_has_natives_bits(self):
        environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        self.assertEqual(run(TRAINING, **environment), run(TRAINING, is_native=True, **environment))

    def test_reduce_overhead_has_natives_results_and_its_graph_trees(self):
        self.assertEqual(run(COMPILED), run(COMPILED, is_native=True))

    def test_graphs_share_a_pool_and_end(self):
        run(
            "x = torch.ones(1 << 20, device='cuda')\n"
            "first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()\n"
            "with torch.cuda.graph(first):\n    y = x * 2 + 1\n"
            "with torch.cuda.graph(second, pool=first.pool()):\n    z = y * 3\n"
            "for value in (1, 4):\n"
            "    x.fill_(value)\n"
            "    first.replay(); second.replay()\n"
            "    torch.cuda.synchronize()\n"
            "    assert z[7].item() == 3 * (2 * value + 1), z[7]\n"
            "ids = {s['segment_pool_id'] for s in torch.cuda.memory_snapshot()}\n"
            "assert first.pool() in ids, ids\n"
            "del y, z, first, second\n"
            "torch.cuda.empty_cache()\n"
            "assert {s['segment_pool_id'] for s in torch.cuda.memory_snapshot()} <= {(0, 0)}\n"
        )

    def test_mem_pools(self):
        run(
            "pool = torch.cuda.MemPool()\n"
            "with torch.cuda.use_mem_pool(pool):\n"
            "    a = torch.full((1 << 18,), 3., device='cuda'); b = torch.full((1 << 18,), 4., device='cuda')\n"
            "outside = torch.ones(1 << 18, device='cuda')\n"
            "segments = torch.cuda.memory_snapshot(pool.id)\n"
            "assert [s['total_size'] for s in segments] == [2 << 20], segments\n"
            "assert pool.use_count() == 1, pool.use_count()\n"
            "assert (a + b + outside)[5].item() == 8\n"
            "del pool\n"
            "assert a.sum().item() == 3 << 18\n"
            "del a, b\n"
            "torch.cuda.empty_cache()\n"
        )

    def test_a_snapshot_with_history_opens(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "snapshot.pickle"
            run(
                "from torch.cuda import _memory_viz\n"
                "torch.cuda.memory._record_memory_history()\n"
                "def hold():\n    return torch.empty(5 << 20, dtype=torch.uint8, device='cuda')\n"
                "held = hold(); hold()\n"
                f"torch.cuda.memory._dump_snapshot({str(path)!r})\n"
                "snapshot = torch.cuda.memory._snapshot()\n"
                "assert _memory_viz.trace_plot(snapshot) and _memory_viz.segment_plot(snapshot)\n"
                "torch.cuda.memory._record_memory_history(enabled=None)\n"
            )
            snapshot = pickle.loads(path.read_bytes())
        names = [frame["name"] for s in snapshot["segments"] for block in s["blocks"] for frame in block.get("frames", [])]
        self.assertIn("hold", names)
        actions = [entry["action"] for entry in snapshot["device_traces"][0]]
        self.assertEqual(actions.count("alloc"), 2)
        self.assertEqual(actions.count("free_completed"), 1)

    def test_lack_of_memory(self):
        out = run(
            "seen = []\n"
            "torch._C._cuda_attach_out_of_memory_observer(lambda device, size, total, free: seen.append((device, size)))\n"
            "torch.cuda.set_per_process_memory_fraction(0.01)\n"
            "assert abs(torch.cuda.get_per_process_memory_fraction() - 0.01) < 1e-6\n"
            "try:\n    torch.empty(1 << 37, dtype=torch.uint8, device='cuda')\n"
            "except torch.OutOfMemoryError as error:\n    print(error)\n"
            "assert seen == [(0, 1 << 37)], seen\n"
            "assert torch.cuda.memory_stats()['num_ooms'] == 1\n"
            "torch.ones(1 << 20, device='cuda').sum().item()\n"
        )
        self.assertIn("CUDA out of memory. Tried to allocate 128.00 GiB. GPU 0 has a total capacity of", out)
        self.assertIn("→", out)

    def test_statistics_and_the_cache(self):
        run(
            "x = torch.empty(64 << 20, dtype=torch.uint8, device='cuda')\n"
            "assert torch.cuda.memory_allocated() == 64 << 20, torch.cuda.memory_allocated()\n"
            "assert torch.cuda.memory_reserved() >= 64 << 20\n"
            "assert torch.cuda.memory_stats()['allocation.all.current'] == 1\n"
            "del x\n"
            "assert torch.cuda.memory_allocated() == 0 and torch.cuda.max_memory_allocated() >= 64 << 20\n"
            "torch.cuda.empty_cache()\n"
            "assert torch.cuda.memory_reserved() == 0, torch.cuda.memory_reserved()\n"
            "torch.cuda.reset_peak_memory_stats(); torch.cuda.reset_accumulated_memory_stats()\n"
            "assert torch.cuda.memory_stats()['allocation.all.allocated'] == 0\n"
            "assert 'Memory pool' in torch.cuda.memory_summary()\n"
        )

    def test_convolutions_choose_their_workspaces(self):
        run(
            "torch.backends.cudnn.benchmark = True\n"
            "x = torch.ones(4, 8, 64, 64, device='cuda')\n"
            "assert torch.nn.Conv2d(8, 8, 3).cuda()(x).shape == (4, 8, 62, 62)\n"
        )

    def test_a_recorded_stream_is_waited_for(self):
        run(
            "side = torch.cuda.Stream()\n"
            "for _ in range(20):\n"
            "    x = torch.full((1 << 22,), 1., device='cuda')\n"
            "    side.wait_stream(torch.cuda.current_stream())\n"
            "    with torch.cuda.stream(side):\n"
            "        torch.cuda._sleep(2_000_000)\n"
            "        y = x.sum()\n"
            "    x.record_stream(side)\n"
            "    del x\n"
            "    torch.full((1 << 22,), 2., device='cuda')\n"
            "    assert y.item() == 1 << 22, y.item()\n"
        )

    def test_the_profiler_sees_memory(self):
        run(
            "from torch.profiler import profile, ProfilerActivity\n"
            "with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as seen:\n"
            "    torch.ones(1 << 20, device='cuda').sum().item()\n"
            "assert max(getattr(e, 'device_memory_usage', 0) for e in seen.key_averages()) >= 4 << 20\n"
        )

    def test_sharing_is_refused(self):
        out = run(
            "try:\n    torch.ones(4, device='cuda').untyped_storage()._share_cuda_()\n"
            "except RuntimeError as error:\n    print(error)\n"
        )
        self.assertIn("gpumem does not share CUDA tensors between processes", out)

    def test_it_is_refused_too_late(self):
        code = (
            "import torch\ntorch.ones(1, device='cuda')\nimport gpumem.torch\n"
            "try:\n    gpumem.torch.install()\nexcept gpumem.WrongState as error:\n    print(error)\n"
        )
        self.assertIn("call install() before the first CUDA tensor", run(code, is_native=True))


if __name__ == "__main__":
    unittest.main()
