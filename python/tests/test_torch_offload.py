"""`gpumem.torch.offload`: gradients equal to those of plain steps, with PyTorch on a GPU."""

import unittest

try:
    import torch
except ImportError:
    torch = None

MIB = 1 << 20
HAS_GPU = torch is not None and torch.cuda.is_available()


def gradients(make, context, steps=3):
    """The losses and gradients of some steps of a network."""
    torch.manual_seed(0)
    net, x = make()
    net, found = net.to("cuda"), []
    for _ in range(steps):
        for parameter in net.parameters():
            parameter.grad = None
        with context() as figures:
            loss = net(x).float().square().mean()
        loss.backward()
        found.append((loss.detach().clone(), [parameter.grad.clone() for parameter in net.parameters()]))
    return found, figures


def equal(left, right):
    return all(
        torch.equal(one[0], other[0]) and all(torch.equal(a, b) for a, b in zip(one[1], other[1])) for one, other in zip(left, right)
    )


@unittest.skipUnless(HAS_GPU, "PyTorch has no GPU")
class OffloadTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import contextlib

        import gpumem.torch

        cls.offload = staticmethod(gpumem.torch.offload)
        cls.plain = staticmethod(contextlib.nullcontext)

    def make(self):
        nn = torch.nn
        layers = [nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.LayerNorm(1024)) for _ in range(12)]
        return nn.Sequential(*layers), torch.randn(4096, 1024, device="cuda")

    def limit(self):
        """So much that about half of what is saved has to move."""
        return torch.cuda.memory_allocated() + 256 * MIB

    def test_gradients_are_equal(self):
        expected, _ = gradients(self.make, self.plain)
        limit = self.limit()
        found, figures = gradients(self.make, lambda: self.offload(limit), steps=3)
        self.assertTrue(equal(expected, found))
        self.assertGreater(figures.moved_bytes, 64 * MIB)
        self.assertLess(figures.moved_bytes, figures.saved_bytes)
        self.assertEqual(figures.returned_bytes, figures.moved_bytes)

    def test_nothing_moves_while_everything_fits(self):
        expected, _ = gradients(self.make, self.plain)
        found, figures = gradients(self.make, self.offload)
        self.assertTrue(equal(expected, found))
        self.assertEqual((figures.moved_bytes, figures.returned_bytes), (0, 0))
        self.assertGreater(figures.saved_bytes, 256 * MIB)

    def test_autocast_and_checkpoints(self):
        from torch.utils.checkpoint import checkpoint

        def make():
            net, x = self.make()

            class Checkpointed(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.net = net

                def forward(self, x):
                    with torch.autocast("cuda", torch.bfloat16):
                        for index, layer in enumerate(self.net):
                            x = checkpoint(layer, x, use_reentrant=False) if index % 3 == 0 else layer(x)
                    return x

            return Checkpointed(), x

        expected, _ = gradients(make, self.plain)
        limit = self.limit() - 128 * MIB
        found, figures = gradients(make, lambda: self.offload(limit))
        self.assertTrue(equal(expected, found))
        self.assertGreater(figures.moved_bytes, 0)

    def test_views_and_shared_storages(self):
        def step(context):
            torch.manual_seed(1)
            x = torch.randn(2048, 2048, device="cuda", requires_grad=True)
            with context() as figures:
                y = x
                for _ in range(24):
                    halves = (y * 1.01).chunk(2, 1)
                    y = torch.cat([halves[1].t().contiguous().t() * halves[0], halves[0].sin()], 1)
                loss = y.sum()
            loss.backward()
            return x.grad, figures

        expected, _ = step(self.plain)
        limit = torch.cuda.memory_allocated() + 192 * MIB
        for _ in range(2):
            found, figures = step(lambda: self.offload(limit))
            self.assertTrue(torch.equal(expected, found))
        self.assertGreater(figures.moved_bytes, 0)

    def test_a_graph_is_walked_twice(self):
        x = torch.randn(4096, 1024, device="cuda", requires_grad=True)
        with self.offload(torch.cuda.memory_allocated() + 64 * MIB) as figures:
            y = x
            for _ in range(16):
                y = y.sin()
            loss = y.sum()
        (first,) = torch.autograd.grad(loss, x, retain_graph=True)
        (second,) = torch.autograd.grad(loss, x)
        self.assertTrue(torch.equal(first, second))
        self.assertGreater(figures.moved_bytes, 0)

    def test_a_written_tensor_is_an_error(self):
        x = torch.randn(1024, 1024, device="cuda", requires_grad=True)
        scale = torch.randn(1024, 1024, device="cuda")
        with self.offload():
            loss = (x * scale).sum()
        scale.add_(1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()

    def test_several_passes_before_one_backward(self):
        net, x = self.make()
        net = net.to("cuda")
        with torch.no_grad():
            limit = torch.cuda.memory_allocated() + 256 * MIB
        losses = []
        for part in x.chunk(2):
            with self.offload(limit):
                losses.append(net(part).square().mean())
        sum(losses).backward()
        found = [parameter.grad.clone() for parameter in net.parameters()]
        for parameter in net.parameters():
            parameter.grad = None
        sum(net(part).square().mean() for part in x.chunk(2)).backward()
        self.assertTrue(all(torch.equal(a, b.grad) for a, b in zip(found, net.parameters())))

    def test_other_streams_and_threads(self):
        import threading

        expected, _ = gradients(self.make, self.plain, steps=1)
        limit, found = self.limit(), [None, None]

        def work(index):
            with torch.cuda.stream(torch.cuda.Stream()):
                found[index], _ = gradients(self.make, lambda: self.offload(limit), steps=1)
                torch.cuda.current_stream().synchronize()

        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for one in found:
            self.assertTrue(all(gradient.isfinite().all() for gradient in one[0][1]))
        self.assertEqual(len(expected[0][1]), len(found[0][0][1]))

    def test_compiled_functions(self):
        net, x = self.make()
        net = net.to("cuda")
        compiled = torch.compile(net)
        net(x).square().mean().backward()
        expected = [parameter.grad.clone() for parameter in net.parameters()]
        for parameter in net.parameters():
            parameter.grad = None
        with self.offload(torch.cuda.memory_allocated() + 256 * MIB) as figures:
            loss = compiled(x).square().mean()
        loss.backward()
        for one, parameter in zip(expected, net.parameters()):
            torch.testing.assert_close(one, parameter.grad, rtol=1e-2, atol=1e-4)
        self.assertGreater(figures.saved_bytes, 0)


if __name__ == "__main__":
    unittest.main()
