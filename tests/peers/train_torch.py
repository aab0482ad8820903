"""The workload of `train --synthetic` in PyTorch, to be timed in the same run as ours.

usage: train_torch.py [ROWSxCOLS] [EPOCHS] [BATCH]
"""

import sys
import time

import torch

rows, columns = (int(n) for n in (sys.argv[1] if len(sys.argv) > 1 else "300000x1000").split("x"))
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 100
batch = int(sys.argv[3]) if len(sys.argv) > 3 else 2048

torch.manual_seed(1)
x, y = torch.rand(rows, columns), torch.rand(rows, 1)

start = time.perf_counter()
x, y = x.cuda(), y.cuda()
torch.cuda.synchronize()
upload = time.perf_counter() - start


def train(epochs, optimizer_options):
    model = torch.nn.Linear(columns, 1).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **optimizer_options)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(epochs):
        for i in range(0, rows, batch):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x[i : i + batch]), y[i : i + batch])
            loss.backward()
            optimizer.step()
    torch.cuda.synchronize()
    return time.perf_counter() - start, loss.item()


print(f"torch {torch.__version__} on {torch.cuda.get_device_name()}: upload {upload:.3f} s")
for name, options in [("default", {}), ("fused Adam", {"fused": True})]:
    train(1, options)
    seconds, loss = train(epochs, options)
    print(f"torch {name:>10}: {seconds:.3f} s for {epochs} epochs, last batch loss {loss:.6f}")
