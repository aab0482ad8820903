"""`python -m gpumem fit`: predictions for scripts, on a machine without a GPU."""

import json
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

TRAINING = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
size = parser.parse_args().batch_size
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024))
optimizer = torch.optim.AdamW(model.parameters())
model.to("cuda")
for step in range(100):
    x = torch.randn(size, 1024).cuda()
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step)
"""


class Done:
    def __init__(self, process):
        self.status, self.text, self.errors = process.returncode, process.stdout, process.stderr

    @property
    def answer(self):
        return json.loads(self.text)


def fit(code, *options, arguments=()):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(code)
        command = [sys.executable, "-m", "gpumem", "fit", "train.py", *options, *(["--", *arguments] if arguments else [])]
        return Done(subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300))


@unittest.skipIf(torch is None, "PyTorch is not installed")
class FitTest(unittest.TestCase):
    def assertStatus(self, done, status):
        self.assertEqual(done.status, status, done.text + done.errors)

    def test_a_training_script_fits(self):
        done = fit(TRAINING, "--device", "24GiB")
        self.assertStatus(done, 0)
        self.assertRegex(done.text.splitlines()[0], r"^train.py: fits in 24.000 GiB: peak ")
        self.assertIn("3 steps of the optimizer", done.text)
        self.assertIn("held at the peak", done.text)
        # What the script prints is no part of the answer.
        self.assertNotIn("step 1\n", done.text)
        self.assertIn("step 1\n", done.errors)

    def test_the_peak_is_the_sum_of_what_lives(self):
        answer = fit(TRAINING, "--json").answer
        weights = 4 * (1024 * 4096 + 4096 + 4096 * 1024 + 1024)
        # Weights, gradients, two moments, and a list of square roots while the optimizer works.
        self.assertGreaterEqual(answer["peak_tensor_bytes"], 4 * weights)
        self.assertLess(answer["peak_tensor_bytes"], 5.5 * weights)
        self.assertEqual(answer["peak_place"], {"line": "train.py:14", "phase": "optimizer step"})
        self.assertGreaterEqual(answer["peak_reserved_bytes"], answer["peak_allocated_bytes"])
        moved = next(one for one in answer["holders"] if one["place"]["line"] == "train.py:8")
        self.assertEqual(moved["live_bytes"], weights)

    def test_it_does_not_fit_and_the_line_is_named(self):
        done = fit(TRAINING, "--device", "300MiB", "--context", "100MiB", arguments=("--batch-size", "16384"))
        self.assertStatus(done, 1)
        self.assertRegex(done.text.splitlines()[0], r"^train.py: does not fit in 300.000 MiB: train.py:\d+ asks for .* \(forward\)")
        self.assertIn("advice", done.text)

    def test_the_largest_batch_is_found(self):
        done = fit(TRAINING, "--device", "300MiB", "--context", "100MiB", "--bisect", "batch-size", "--most", "4096", "--json")
        self.assertStatus(done, 0)
        found = done.answer["bisected"]
        self.assertTrue(found["tried"][str(found["largest"])])
        self.assertFalse(found["tried"][str(found["largest"] + 1)])

    def test_sizes_of_the_host_are_exact(self):
        code = """
import torch
lengths = torch.tensor([3, 0, 5]).to("cuda")
mask = lengths > 0
places = mask.nonzero()
assert places.shape == (2, 1) and lengths[mask].shape == (2,) and lengths.tolist() == [3, 0, 5]
assert torch.unique(torch.tensor([1, 1, 2]).cuda()).shape == (2,) and int(lengths.sum()) == 8
lengths += 1
assert lengths.max().item() == 6
lengths[0] = torch.empty(1, device="cuda", dtype=torch.int64)[0]
"""
        done = fit(code, "--json")
        self.assertStatus(done, 0)
        self.assertEqual(done.answer["assumed"], [])

    def test_sizes_of_unknown_values_are_assumed_and_said(self):
        code = """
import torch
x = torch.randn(1 << 20).cuda() * 2
kept = x[x > 0]
print(kept.shape, float(x.sum()))
"""
        done = fit(code, "--json")
        self.assertStatus(done, 0)
        texts = {(one["line"], one["text"]) for one in done.answer["assumed"]}
        self.assertIn(("train.py:4", "the size of nonzero depends on values: all of its elements are taken"), texts)
        self.assertIn(("train.py:5", "a value of the device is read, which is taken to be 0.0"), texts)
        self.assertIn("[1048576]", done.errors)
        self.assertIn("[262144]", fit(code, "--share", "0.25").errors)

    def test_what_scripts_use(self):
        code = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
device = torch.device("cuda")
torch.cuda.set_device(0)
torch.cuda.manual_seed_all(1)
assert torch.cuda.is_available() and torch.cuda.device_count() == 1
assert torch.cuda.get_device_properties(0).total_memory == 24 << 30
generator = torch.Generator(device="cuda").manual_seed(1)
torch.randn(3, device=device, generator=generator)
data = torch.utils.data.TensorDataset(torch.randn(64, 3, 16, 16), torch.randint(10, (64,)))
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10)).to(device)
model = torch.compile(model)
for options in ({"foreach": True}, {"fused": True}, {"capturable": True}, {"foreach": False}):
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    scaler = torch.amp.GradScaler("cuda")
    for images, labels in torch.utils.data.DataLoader(data, 16, num_workers=2, pin_memory=True, persistent_workers=True):
        images, labels = images.to(device, non_blocking=True), labels.cuda(non_blocking=True)
        with torch.autocast("cuda", torch.float16):
            out = checkpoint(model, images, use_reentrant=False)
            loss = nn.functional.cross_entropy(out, labels)
        assert out.dtype == torch.float16 and loss.dtype == torch.float32
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        assert torch.isfinite(loss)
for dtype in (torch.bfloat16, torch.float32):
    q = torch.randn(2, 4, 32, 16, device=device, dtype=dtype, requires_grad=True)
    nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    assert q.grad.shape == q.shape
with torch.inference_mode():
    assert nn.LSTM(4, 8).to(device)(torch.randn(3, 2, 4).to(device))[0].is_cuda
print(torch.cuda.memory_summary(), torch.cuda.memory_allocated(), torch.cuda.mem_get_info())
torch.save(model.state_dict(), "never.pt")
import os
assert not os.path.exists("never.pt")
"""
        done = fit(code, "--steps", "0", "--json")
        self.assertStatus(done, 0)
        self.assertIn("torch.save writes nothing", str(done.answer["assumed"]))
        self.assertEqual(done.answer["ended"], "at its end")

    def record(self, code, *options):
        """The lines of the record, without its header."""
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder) / "kept.csv"
            self.assertStatus(fit(code, "--steps", "0", "--record", str(record), *options), 0)
            return record.read_text().splitlines()[1:]

    def sizes(self, code, *options):
        return [int(line.split(",")[2]) for line in self.record(code, *options) if line.startswith("a,")]

    def test_a_block_of_another_stream_is_free_when_that_has_ended(self):
        code = """
import torch
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    x = torch.ones(1 << 20, device="cuda")
torch.cuda.current_stream().wait_stream(side)
x.record_stream(torch.cuda.current_stream())
del x
torch.cuda.synchronize()
"""
        lines = self.record(code)
        self.assertEqual([line[0] for line in lines], ["a", "f", "c"])
        self.assertNotEqual(lines[0].split(",")[3], "0")

    def test_memory_goes_to_another_stream_once_the_device_is_done(self):
        code = """
import torch
side = torch.cuda.Stream()
x = torch.ones(8192, 8192, device="cuda")
for _ in range(5):
    x @ x
x.record_stream(side)
del x
{between}
with torch.cuda.stream(side):
    torch.ones(100, device="cuda")
"""
        # The products take longer than it takes to queue them; the host's random numbers take longer than the products.
        for between, is_free in (("", False), ("torch.cuda.synchronize()", True), ("torch.rand(1 << 27)", True)):
            with self.subTest(between=between):
                lines = self.record(code.format(between=between), "--device", "h100")
                last = next(place for place, line in enumerate(lines) if line.startswith("a,") and line.split(",")[2] == "400")
                self.assertEqual("c,0" in lines[:last], is_free)
                self.assertIn("c,0", lines)

    def test_the_host_waits_for_a_full_queue(self):
        code = """
import torch
side = torch.cuda.Stream()
x = torch.ones(8192, 8192, device="cuda")
kept = x + 1
x.record_stream(side)
del x
for _ in range({count}):
    kept.mul_(2)
with torch.cuda.stream(side):
    torch.ones(100, device="cuda")
"""
        for count, is_free in ((100, False), (1100, True)):
            with self.subTest(count=count):
                lines = self.record(code.format(count=count))
                last = next(place for place, line in enumerate(lines) if line.startswith("a,") and line.split(",")[2] == "400")
                self.assertEqual("c,0" in lines[:last], is_free)

    def test_one_stream_needs_no_clock(self):
        self.assertNotIn("c", {line[0] for line in self.record(TRAINING, "--steps", "2")})

    def test_plain_attention_is_kept_in_float_once(self):
        code = """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
heads, rows, width = 8, 1024, 64
q, k, v = (torch.randn(1, heads, rows, width, device="cuda", requires_grad=True) for _ in range(3))
with torch.autocast("cuda", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
assert out.dtype == torch.bfloat16
before = torch.cuda.memory_allocated()
del q, k, v
torch.ones(100, device="cuda")
"""
        lines = self.record(code)
        sizes = {line.split(",")[1]: int(line.split(",")[2]) for line in lines if line.startswith("a,")}
        weights = 4 * 8 * 1024 * 1024
        upto = next(place for place, line in enumerate(lines) if line.startswith("a,") and line.split(",")[2] == "400")
        freed = {line.split(",")[1] for line in lines[:upto] if line.startswith("f,")}
        # The weights alone; nothing in the narrow type, in which the sum of parts does not compute.
        self.assertEqual([size for one, size in sizes.items() if one not in freed and size >= weights // 2], [weights])
        # The scores and the softmax of them; a byte for each score; and the softmax in the type of the result, which is returned too.
        self.assertEqual(list(sizes.values()).count(weights), 2)
        self.assertEqual(list(sizes.values()).count(weights // 4), 1)
        self.assertEqual(list(sizes.values()).count(weights // 2), 1)

    def test_composed_operations_show_what_they_take_inside(self):
        sizes = self.sizes("""
import torch
x, y = torch.zeros(1000, 1000, device="cuda"), torch.zeros(1000, 1000, device="cuda")
torch.nn.functional.binary_cross_entropy_with_logits(x, y)
""")
        # The arguments, and what is computed of them before the mean.
        self.assertEqual(sizes.count(4_000_000), 4)

    def test_counts_of_unique_keep_the_memory_of_all_elements(self):
        code = """
import torch
x = torch.arange(100_000).div(10, rounding_mode="floor").cuda()
values, inverse, counts = x.{name}(return_inverse=True, return_counts=True)
assert values.shape == counts.shape == (10_000,) and inverse.shape == x.shape
assert counts.tolist() == [10] * 10_000 and values.tolist() == list(range(10_000)) and inverse.tolist() == x.tolist()
torch.ones(100, device="cuda")
"""
        for name in ("unique", "unique_consecutive"):
            with self.subTest(name=name):
                lines = self.record(code.format(name=name))
                upto = next(place for place, line in enumerate(lines) if line.startswith("a,") and line.split(",")[2] == "400")
                freed = {line.split(",")[1] for line in lines[:upto] if line.startswith("f,")}
                live = [line.split(",") for line in lines[:upto] if line.startswith("a,")]
                # The source and all three results.
                self.assertEqual([int(size) for _, one, size, _ in live if one not in freed], [800_000] * 4)

    def test_a_layer_of_an_encoder_is_taken_apart(self):
        code = """
import torch
from torch import nn
batch, rows, width = 16, 256, 512
layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True).to("cuda", torch.float16).eval()
x = torch.randn(batch, rows, width).to("cuda", torch.float16)
with torch.inference_mode():
    assert layer(x).shape == x.shape
"""
        answer = fit(code, "--steps", "0", "--json").answer
        x_bytes, weights = 2 * 16 * 256 * 512, 2 * 12 * 512 * 512
        products = sum(one["live_bytes"] for one in answer["holders"] if one["operation"] == "cuBLAS workspace")
        # At its peak: the layer's source, what attention gave, the wide tensor, and its product.
        needed = answer["peak_allocated_bytes"] - products
        self.assertGreaterEqual(needed, 7 * x_bytes + weights)
        self.assertLess(needed, 7.5 * x_bytes + weights)

    def test_layers_in_inference(self):
        code = """
import torch
from torch import nn
x, other = torch.randn(4, 10, 64).cuda(), torch.randn(4, 7, 64).cuda()
padding = torch.zeros(4, 10, dtype=torch.bool).cuda()
attention = nn.MultiheadAttention(64, 4, batch_first=True).cuda().eval()
with torch.no_grad():
    for norm_first in (False, True):
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=norm_first).cuda().eval()
        assert layer(x, src_key_padding_mask=padding).shape == x.shape
    shapes = [attention(x, x, x)[1].shape, attention(x, x, x, average_attn_weights=False)[1].shape, attention(x, other, other)[1].shape]
    assert shapes == [(4, 10, 10), (4, 4, 10, 10), (4, 10, 7)], shapes
"""
        self.assertStatus(fit(code, "--steps", "0", "--json"), 0)

    def test_no_answer_is_an_error(self):
        for code, options, text in (
            ("raise ValueError('no data')", (), "the script raised ValueError: no data"),
            ("print(1)", (), "nothing was allocated on a device; does the script use cuda?"),
            ("import sys; sys.exit(3)", (), "the script ended with 3"),
            (TRAINING, ("--device", "24"), "write the unit, such as 24GiB"),
            (TRAINING, ("--device", "huge"), "neither a size such as 24GiB nor one of"),
            (TRAINING, ("--context", "25GiB"), "leaves nothing of the device"),
            (TRAINING, ("--share", "2"), "is not a number from 0 to 1"),
        ):
            with self.subTest(text=text):
                done = fit(code, *options)
                self.assertStatus(done, 2)
                self.assertIn(text, done.errors)
                self.assertEqual(done.text, "")

    def test_a_module_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "package").mkdir()
            (Path(folder) / "package" / "__init__.py").write_text("")
            (Path(folder) / "package" / "train.py").write_text(TRAINING)
            command = [sys.executable, "-m", "gpumem", "fit", "-m", "package.train", "--", "--batch-size", "8"]
            done = Done(subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300))
        self.assertStatus(done, 0)
        self.assertIn("package/train.py:", done.text)


if __name__ == "__main__":
    unittest.main()
