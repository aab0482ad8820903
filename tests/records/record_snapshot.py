"""Records a memory snapshot of a small training run: python3 record_snapshot.py pytorch_recorded.pickle

Needs PyTorch and an NVIDIA GPU. Prints PyTorch's own peaks. Paths of source files are shortened to begin at the package or at
this program.
"""

import os
import pickle
import sys

import torch
from torch import nn


def shortened(value, prefixes):
    """The value with the file names of all frames shortened; shared values stay shared."""
    if isinstance(value, dict):
        name = value.get("filename")
        if name is not None:
            for prefix in prefixes:
                value["filename"] = name = name.removeprefix(prefix)
        for part in value.values():
            shortened(part, prefixes)
    elif isinstance(value, list):
        for part in value:
            shortened(part, prefixes)
    return value


def main(path):
    torch.manual_seed(1)
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(8),
        nn.Flatten(),
        nn.Linear(128 * 64, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(8):
        count = 32 + 24 * (step % 3)
        images = torch.randn(count, 3, 64 + 16 * (step % 2), 64, device="cuda")
        labels = torch.randint(10, (count,), device="cuda")
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("allocated:", torch.cuda.max_memory_allocated(), "reserved:", torch.cuda.max_memory_reserved())
    snapshot = torch.cuda.memory._snapshot()
    packages = os.path.dirname(os.path.dirname(torch.__file__)) + os.sep
    here = os.path.join(os.path.dirname(main.__code__.co_filename), "")
    with open(path, "wb") as file:
        pickle.dump(shortened(snapshot, [packages, here]), file)


if __name__ == "__main__":
    main(sys.argv[1])
