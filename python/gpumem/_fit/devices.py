"""Devices that a script is tried on: memory, compute capability, and what lies outside the allocator."""

from __future__ import annotations

import dataclasses
import os
import re

MIB = 1 << 20
GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Device:
    name: str
    total_bytes: int
    capability: tuple[int, int]
    multiprocessor_count: int

    @property
    def class_text(self) -> str:
        return "compute capability {}.{}".format(*self.capability)


# `total_memory` as PyTorch shows it, which is less than the name of a card promises: ECC and the driver take their part.
_KNOWN = {
    "t4": Device("Tesla T4", 15095 * MIB, (7, 5), 40),
    "v100": Device("Tesla V100-SXM2-16GB", 16144 * MIB, (7, 0), 80),
    "a10": Device("NVIDIA A10", 22503 * MIB, (8, 6), 72),
    "l4": Device("NVIDIA L4", 22563 * MIB, (8, 9), 58),
    "l40s": Device("NVIDIA L40S", 45416 * MIB, (8, 9), 142),
    "rtx3090": Device("NVIDIA GeForce RTX 3090", 24122 * MIB, (8, 6), 82),
    "rtx4090": Device("NVIDIA GeForce RTX 4090", 24080 * MIB, (8, 9), 128),
    "a100": Device("NVIDIA A100-SXM4-40GB", 40326 * MIB, (8, 0), 108),
    "a100-80gb": Device("NVIDIA A100-SXM4-80GB", 81038 * MIB, (8, 0), 108),
    "h100": Device("NVIDIA H100 80GB HBM3", 81079 * MIB, (9, 0), 132),
    "h200": Device("NVIDIA H200", 143156 * MIB, (9, 0), 132),
    "b200": Device("NVIDIA B200", 182642 * MIB, (10, 0), 148),
}

# What a process of PyTorch holds outside its allocator: the context, the code of loaded kernels, and cuBLAS's and cuDNN's own state. By the
# major compute capability. It depends on the driver and on which kernels a program uses, so these are generous.
_OUTSIDE = {7: 400 * MIB, 8: 500 * MIB, 9: 700 * MIB, 10: 800 * MIB, 12: 600 * MIB}

_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": MIB, "G": GIB, "T": 1 << 40}


class Unreadable(Exception):
    """An argument that cannot be used."""


def parse_size(text: str) -> int:
    """Bytes of `24GiB`, `500M`, `1.5g`."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if found is None:
        raise Unreadable(f"{text!r} is no size; write one such as 24GiB or 500MiB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def parse_device(text: str, capability: str | None) -> Device:
    """The device of `24GiB`, or of a name such as `h100`."""
    known = _KNOWN.get(text.lower().replace(" ", "").replace("_", "-"))
    if known is None:
        try:
            total_bytes = parse_size(text)
        except Unreadable:
            raise Unreadable(f"{text!r} is neither a size such as 24GiB nor one of {', '.join(_KNOWN)}") from None
        if total_bytes < 64 * MIB:
            raise Unreadable(f"a device of {text} is too small for PyTorch; write the unit, such as 24GiB")
        # Large memory means a device of a data centre, whose libraries take more.
        likely = (9, 0) if total_bytes >= 64 * GIB else (8, 9)
        known = Device(f"a device of {size_text(total_bytes)}", total_bytes, likely, 132)
    if capability is None:
        return known
    found = re.fullmatch(r"([0-9]+)\.([0-9])", capability)
    if found is None:
        raise Unreadable(f"{capability!r} is no compute capability; write one such as 9.0")
    return dataclasses.replace(known, capability=(int(found[1]), int(found[2])))


def outside_bytes(device: Device) -> int:
    """What lies outside the allocator, by the table."""
    major = device.capability[0]
    return _OUTSIDE.get(major, _OUTSIDE[max(key for key in _OUTSIDE if key <= max(major, 7))])


def cublas_workspace_bytes(device: Device) -> int:
    """The workspace that PyTorch allocates for cuBLAS, for each thread that computes and each stream (ATen/cuda/CublasHandlePool.cpp)."""
    config = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    parts = re.findall(r":([0-9]+):([0-9]+)", config)
    if parts:
        return sum(int(size) * int(count) for size, count in parts) * 1024
    # 32 MiB are what NVIDIA recommends for these; :4096:2:16:8 for others.
    return 32 * MIB if device.capability in ((9, 0), (10, 0)) else (4096 * 2 + 16 * 8) * 1024


def cublas_light_workspace() -> str:
    """The variable with the workspace of cuBLASLt in KiB (ATen/cuda/CublasHandlePool.cpp); empty if it is not set."""
    return os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")


def size_text(size_bytes: int) -> str:
    for unit, name in ((1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.3f} {name}"
    return f"{size_bytes} B"
