"""When the device has done its work: a clock of the host and one for each stream.

A block that several streams share is free for the others once the device has passed its last use, and whether that is before the next
request depends on who is faster. The costs are rough: one operation takes the time of its memory traffic or of its arithmetic. They need to
tell a host that computes for milliseconds from one that queues work ahead, and to be the same in every run.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from .values import tensors

# The host: bytes that it computes, and random bytes that it draws in a second; what it takes to queue an operation.
_HOST_BYTES, _HOST_RANDOM_BYTES, _LAUNCH_S = 10e9, 2e9, 5e-6
# The device: bytes and operations in float of a multiprocessor, and how much faster narrow types are; bytes from and to the host.
_DEVICE_BYTES, _DEVICE_OPERATIONS, _NARROW, _LINK_BYTES = 10e9, 0.25e12, 8.0, 20e9
# Operations that are queued before the host has to wait for the oldest one.
_QUEUE_COUNT = 1024


class Clock:
    """Stands still until a program makes a stream: with one stream nothing depends on it."""

    def __init__(self, multiprocessor_count: int) -> None:
        self.is_running = False
        self.host_s = 0.0
        self._ready_s: dict[int, float] = {}
        self._queue: deque[float] = deque()
        self._multiprocessor_count = multiprocessor_count

    def ready_s(self, stream: int) -> float:
        """When a stream has done what is queued on it."""
        return self._ready_s.get(stream, 0.0)

    # The host.

    def compute(self, func: Any, result: Any) -> None:
        """The host runs an operation on its own tensors."""
        if self.is_running and not func.is_view:
            is_random = torch.Tag.nondeterministic_seeded in func.tags
            self.host_s += _bytes(result) / (_HOST_RANDOM_BYTES if is_random else _HOST_BYTES)

    def wait(self, until_s: float) -> None:
        self.host_s = max(self.host_s, until_s)

    def synchronize(self) -> None:
        self.wait(max(self._ready_s.values(), default=0.0))

    # Streams.

    def order(self, stream: int, until_s: float) -> None:
        """A stream waits for a point of another one."""
        self._ready_s[stream] = max(self.ready_s(stream), until_s)

    def queue(self, stream: int, func: Any, args: Any, result: Any) -> None:
        """The host queues an operation on a stream."""
        if self.is_running and not func.is_view:
            traffic_s = (_bytes(args) + _bytes(result)) / (_DEVICE_BYTES * self._multiprocessor_count)
            self._launch(stream, max(traffic_s, self._arithmetic_s(func, args, result)))

    def copy(self, stream: int, tensor: torch.Tensor, is_awaited: bool) -> None:
        """The host queues a copy from its memory or to it."""
        if self.is_running:
            self._launch(stream, _bytes(tensor) / _LINK_BYTES)
            if is_awaited:
                self.wait(self.ready_s(stream))

    def _launch(self, stream: int, took_s: float) -> None:
        self.host_s += _LAUNCH_S
        if len(self._queue) == _QUEUE_COUNT:
            self.wait(self._queue.popleft())
        self._ready_s[stream] = max(self.ready_s(stream), self.host_s) + took_s
        self._queue.append(self._ready_s[stream])

    def _arithmetic_s(self, func: Any, args: Any, result: Any) -> float:
        count = flop_registry.get(func._overloadpacket)
        if count is None:
            return 0.0
        try:
            operations = float(count(*args, out_val=result))
        except Exception:
            # Arguments that PyTorch's own table does not expect.
            return 0.0
        narrow = next((one.element_size() < 4 for one in tensors(args)), False)
        return operations / (_DEVICE_OPERATIONS * (_NARROW if narrow else 1.0) * self._multiprocessor_count)


def _bytes(values: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(values))
