"""PyTorch on two GPUs: the same programs with gpumem as without, results equal to the bit.

    python3 -m unittest discover -s python/tests -p test_torch_devices.py -v
"""

import json
import os
import subprocess
import sys
import unittest

try:
    import torch

    DEVICE_COUNT = torch.cuda.device_count()
except Exception:
    DEVICE_COUNT = 0

# Prints a line of JSON for each part: its name, and a number or the error.
PROGRAM = """
import json, sys
import torch

if sys.argv[1] != "native":
    import gpumem.torch
    gpumem.torch.install(conf=sys.argv[2] or None)

def synchronize():
    for index in range(2):
        torch.cuda.synchronize(index)

def part(function):
    try:
        result = function()
        synchronize()
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    print(json.dumps([function.__name__, result]), flush=True)

torch.manual_seed(7)
numbers = torch.arange(1 << 20, device="cuda:0", dtype=torch.float32)

@part
def to():
    return float((numbers.to("cuda:1") + 1).sum())

@part
def back():
    return float((numbers.to("cuda:1") * 2).to("cuda:0").sum())

@part
def copy_in_place():
    return float(torch.empty_like(numbers, device="cuda:1").copy_(numbers).sum())

@part
def copy_of_another_type():
    return float(torch.empty(numbers.shape, device="cuda:1", dtype=torch.float64).copy_(numbers).sum())

@part
def copy_of_columns():
    return float(torch.empty(512, 1024, device="cuda:1").copy_(numbers.view(1024, 1024)[:, ::2].t()).sum())

@part
def large():
    return float(torch.ones(1 << 28, device="cuda:0").to("cuda:1").sum())

@part
def on_side_streams():
    source, target = torch.cuda.Stream("cuda:0"), torch.cuda.Stream("cuda:1")
    source.wait_stream(torch.cuda.current_stream("cuda:0"))
    with torch.cuda.stream(source), torch.cuda.stream(target):
        sums = [float((numbers * factor).to("cuda:1", non_blocking=True).sum()) for factor in range(20)]
    return sums

@part
def broadcast():
    return [x.sum().item() for x in torch.nn.parallel.comm.broadcast(numbers, [0, 1])]

@part
def data_parallel():
    model = torch.nn.DataParallel(torch.nn.Linear(64, 64).cuda(), [0, 1])
    return float(model(torch.ones(8, 64, device="cuda:0")).sum().detach())

@part
def nccl():
    ones = [torch.ones(1024, device=f"cuda:{index}") for index in range(2)]
    torch.cuda.nccl.all_reduce(ones)
    return [float(x.sum()) for x in ones]

@part
def losses_of_a_model_on_two_devices():
    torch.manual_seed(11)
    first = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU()).to("cuda:0")
    second = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 10)).to("cuda:1")
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=1e-3)
    losses = []
    for step in range(30):
        size = 32 + 37 * step % 200
        x = torch.randn(size, 256, device="cuda:0")
        y = torch.randint(10, (size,), device="cuda:1")
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(second(first(x).to("cuda:1")), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()).hex())
    return losses

if sys.argv[1] == "sleep":
    @part
    def asleep_and_awake():
        with gpumem.torch.part("weights", device=0) as weights:
            kept = torch.arange(1 << 22, device="cuda:0", dtype=torch.float32)
        seen = kept.to("cuda:1")
        synchronize()
        weights.sleep()
        del seen
        weights.wake()
        return [float(kept.to("cuda:1").double().sum()), float(torch.empty_like(kept, device="cuda:1").copy_(kept).double().sum())]
"""


@unittest.skipIf(DEVICE_COUNT < 2, "needs PyTorch and two GPUs")
class TwoDevicesTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.native = cls.run_program("native")

    @staticmethod
    def run_program(mode, conf=""):
        environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        command = [sys.executable, "-c", PROGRAM, mode, conf]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise AssertionError(f"{mode}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
        return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))

    def test_native_passes(self):
        self.assertEqual([name for name, result in self.native.items() if isinstance(result, str)], [])

    def test_results_are_equal_to_the_bit(self):
        self.assertEqual(self.run_program("gpumem"), self.native)

    def test_every_backend_copies(self):
        for conf in ("backend:native", "expandable_segments:false", "profile:tight"):
            if conf == "backend:native" and not torch.cuda.can_device_access_peer(0, 1):
                continue  # The driver's pools are copied over a link alone.
            with self.subTest(conf):
                self.assertEqual(self.run_program("gpumem", conf), self.native)

    def test_memory_that_other_devices_use_sleeps(self):
        total = float(sum(range(1 << 22)))
        results = self.run_program("sleep")
        self.assertEqual(results.pop("asleep_and_awake"), [total, total])
        self.assertEqual(results, self.native)


@unittest.skipIf(DEVICE_COUNT < 2, "needs PyTorch and two GPUs")
class UnusedDevicesTest(unittest.TestCase):
    def test_a_device_that_is_not_used_gets_no_context(self):
        """In a process that uses one device, PyTorch and gpumem create no context on the others."""
        program = """
import ctypes, torch, gpumem.torch
gpumem.torch.install()
x = torch.ones(1 << 24, device="cuda:0")
torch.cuda.synchronize()
driver, flags, active = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint(), ctypes.c_int()
for device in range(1, torch.cuda.device_count()):
    assert driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) == 0
    assert active.value == 0, device
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
