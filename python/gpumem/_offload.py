"""Saved tensors that move to the host while device memory is short: `gpumem.torch.offload`.

The backward pass needs saved tensors in the reverse of the order in which they were saved. So the oldest ones move first, on a stream of
their own, behind the work that made them, and return on another stream ahead of the backward pass.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Optional

import torch

from ._native import Error, Unsupported

# Smaller tensors stay: a move costs some microseconds of the host.
_LEAST_BYTES = 1 << 20
# The pinned arena grows by this much.
_CHUNK_BYTES = 256 << 20
# Memory in use is compared with the limit each time that so much has been saved: 1/64 of the limit, and at least this.
_CHECK_BYTES_MIN = 16 << 20
_ALIGNMENT = 512
# The latest entries stay, and entries that the program used are looked at again after so many more.
_IN_FLIGHT = 4
_LOOK_AGAIN = 64


class Offload:
    """What `gpumem.torch.offload()` yields: the figures of one pass, in bytes.

    `saved_bytes` of tensors were saved for the backward pass, without those that always stay: parameters, small tensors, and tensors of
    other devices. Of them `moved_bytes` have moved to the host, and `returned_bytes` of those have come back.
    """

    def __init__(self, home: _Home, limit_bytes: int) -> None:
        self.saved_bytes = 0
        self.moved_bytes = 0
        self.returned_bytes = 0
        self._home = home
        self._lock = threading.RLock()
        self._high_bytes = limit_bytes - limit_bytes // 16
        self._check_bytes = max(_CHECK_BYTES_MIN, limit_bytes // 64)
        self._checked_at = 0
        # The goal of the passes before, and what this pass has added.
        self._goal_bytes = home.goals.get(limit_bytes, 0)
        self._limit_bytes = limit_bytes
        self._entries: list[weakref.ref[_Entry]] = []
        self._by_storage: dict[int, weakref.ref[_Entry]] = {}
        # Entries that may still move, the oldest first.
        self._resident: deque[weakref.ref[_Entry]] = deque()
        # Those of them that the program used when they were looked at, such as weights that autocast keeps.
        self._held: list[weakref.ref[_Entry]] = []
        self._look_at = 0
        # Entries below have not been asked to return.
        self._cursor: Optional[int] = None
        self._early_bytes = 0
        self._largest_bytes = 0
        self._is_begun = False
        self._hooks: Any = None

    def __enter__(self) -> Offload:
        if self._is_begun:
            raise Error("this pass has begun already; call gpumem.torch.offload() for each one")
        self._is_begun = True
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)
        # It refers to this object.
        self._hooks = None
        with self._lock:
            # What has to move next time: as much as now, and what is too much or too little at the end of this pass.
            spare_bytes = self._high_bytes - self._home.in_use_bytes()
            goal_bytes = max(self._goal_bytes, self.moved_bytes)
            goal_bytes -= spare_bytes if spare_bytes < 0 else spare_bytes // 2
            self._home.goals[self._limit_bytes] = max(0, goal_bytes)

    def _pack(self, tensor: torch.Tensor) -> Any:
        home = self._home
        if not home.may_move(tensor):
            return tensor
        with self._lock:
            storage = tensor.untyped_storage()
            entry = self._known(storage)
            if entry is None:
                entry = _Entry(self, len(self._entries), storage)
                reference = weakref.ref(entry)
                self._entries.append(reference)
                self._resident.append(reference)
                self._by_storage[storage.data_ptr()] = reference
                self.saved_bytes += entry.size_bytes
                self._largest_bytes = max(self._largest_bytes, entry.size_bytes)
            packed = _Packed(entry, tensor)
            self._move_what_must()
            return packed

    def _known(self, storage: Any) -> Optional[_Entry]:
        """The entry of a storage that is on the device."""
        reference = self._by_storage.get(storage.data_ptr())
        entry = None if reference is None else reference()
        # Another storage may have the address of one that moved.
        return entry if entry is not None and entry.storage is not None else None

    def _move_what_must(self) -> None:
        if self.moved_bytes < self._goal_bytes:
            self._move(self._goal_bytes - self.moved_bytes)
        if self.saved_bytes - self._checked_at >= self._check_bytes:
            self._checked_at = self.saved_bytes
            excess_bytes = self._home.in_use_bytes() - self._high_bytes
            if excess_bytes > 0:
                self._move(excess_bytes)

    def _move(self, size_bytes: int) -> None:
        """Moves the oldest entries, up to so many bytes or a little more. Those that the program still uses are set aside."""
        if self._held and len(self._entries) >= self._look_at:
            self._look_at = len(self._entries) + _LOOK_AGAIN
            self._resident.extendleft(reversed(self._held))
            self._held.clear()
        while size_bytes > 0 and self._resident:
            reference = self._resident[0]
            entry = reference()
            if entry is not None and entry.index + _IN_FLIGHT >= len(self._entries):
                # The work that follows may use what was saved last.
                return
            self._resident.popleft()
            if entry is None or entry.storage is None:
                continue
            if entry.is_used_elsewhere():
                self._held.append(reference)
            elif entry.move_out():
                self.moved_bytes += entry.size_bytes
                size_bytes -= entry.size_bytes

    def _bring_ahead(self, index: int) -> None:
        """Brings entries back that the backward pass needs next."""
        window_bytes = max(2 * self._largest_bytes, _CHUNK_BYTES)
        at = index - 1 if self._cursor is None else min(self._cursor, index - 1)
        while at >= 0 and self._early_bytes < window_bytes:
            entry = self._entries[at]()
            if entry is not None and entry.storage is None:
                try:
                    entry.bring_back()
                except torch.cuda.OutOfMemoryError:
                    # It returns when it is needed.
                    break
                entry.is_early = True
                self._early_bytes += entry.size_bytes
            at -= 1
        self._cursor = at


class _Entry:
    """One storage that was saved: on the device, or on the host."""

    def __init__(self, owner: Offload, index: int, storage: Any) -> None:
        self.owner, self.index, self.storage = owner, index, storage
        self.size_bytes: int = storage.nbytes()
        self.packed: weakref.WeakSet[_Packed] = weakref.WeakSet()
        self.host: Optional[_Piece] = None
        self.copied: Any = None
        self.arrived: Any = None
        self.is_early = False

    def is_used_elsewhere(self) -> bool:
        """True if the program has the storage, so that a move would free nothing."""
        own = 1 + sum(1 for packed in self.packed if packed.kept is not None)
        return int(torch._C._storage_Use_Count(self.storage._cdata)) > own

    def move_out(self) -> bool:
        home = self.owner._home
        if any(packed.is_changed() for packed in self.packed):
            # It is reported when the backward pass asks for it.
            return False
        bytes_ = _bytes_of(self.storage, home.device)
        try:
            self.host = home.arena.take(self.size_bytes)
        except RuntimeError:
            # The host has no memory to pin, so the contents stay.
            return False
        home.down.wait_stream(torch.cuda.current_stream(home.device))
        self.host.wait_until_read(home.down)
        with torch.cuda.stream(home.down):
            self.host.tensor.copy_(bytes_, non_blocking=True)
            self.copied = home.down.record_event()
        bytes_.record_stream(home.down)
        for packed in self.packed:
            packed.kept = None
        self.storage = None
        return True

    def bring_back(self) -> None:
        home = self.owner._home
        assert self.host is not None
        with torch.cuda.stream(home.up):
            bytes_ = torch.empty(self.size_bytes, dtype=torch.uint8, device=home.device)
            home.up.wait_event(self.copied)
            bytes_.copy_(self.host.tensor, non_blocking=True)
            self.arrived = home.up.record_event()
        self.host.end(self.arrived)
        self.host = None
        self.storage = bytes_.untyped_storage()
        self.owner.returned_bytes += self.size_bytes

    def __del__(self) -> None:
        if self.host is not None:
            self.host.end(None)


class _Packed:
    """What autograd keeps instead of a tensor."""

    __slots__ = ("entry", "kept", "version", "form", "__weakref__")

    def __init__(self, entry: _Entry, tensor: torch.Tensor) -> None:
        self.entry = entry
        # It has the version of the tensor.
        self.kept: Optional[torch.Tensor] = tensor.detach()
        self.version = tensor._version
        self.form = (tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride())
        entry.packed.add(self)

    def is_changed(self) -> bool:
        return self.kept is not None and self.kept._version != self.version


def _unpack(packed: Any) -> torch.Tensor:
    if not isinstance(packed, _Packed):
        return packed
    entry = packed.entry
    owner = entry.owner
    home = owner._home
    with owner._lock:
        if packed.is_changed():
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of shape "
                f"{list(packed.form[2])} was saved at version {packed.version} and has been written since; "
                "make a copy before the operation"
            )
        if entry.storage is None:
            entry.bring_back()
        if entry.is_early:
            entry.is_early = False
            owner._early_bytes -= entry.size_bytes
        if packed.kept is not None:
            tensor = packed.kept
        else:
            dtype, offset, size, stride = packed.form
            tensor = torch.empty(0, dtype=dtype, device=home.device).set_(entry.storage, offset, size, stride)
            current = torch.cuda.current_stream(home.device)
            if entry.arrived is not None:
                current.wait_event(entry.arrived)
                tensor.record_stream(current)
        owner._bring_ahead(entry.index)
        return tensor


class _Piece:
    """A part of a chunk of pinned memory."""

    def __init__(self, arena: _Arena, chunk: _Chunk, tensor: torch.Tensor) -> None:
        self.arena, self.chunk, self.tensor = arena, chunk, tensor

    def wait_until_read(self, stream: torch.cuda.Stream) -> None:
        if self.chunk.read is not None:
            stream.wait_event(self.chunk.read)

    def end(self, read: Any) -> None:
        """Ends the use of the piece. `read`: the event behind its last read, if there was one."""
        self.arena.end(self.chunk, read)


class _Chunk:
    """Pinned memory that is given out from the start, and again once all pieces have ended."""

    def __init__(self, size_bytes: int) -> None:
        self.memory = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        self.used_bytes = 0
        self.piece_count = 0
        # The latest read. Reads are on one stream, so it stands for all. Writes are on one, too.
        self.read: Any = None


class _Arena:
    """Pinned memory. It is kept, because pinning takes 0.4 s for each GiB."""

    def __init__(self) -> None:
        self.chunks: list[_Chunk] = []
        # An entry may end in a collection of garbage, on a thread that is in here.
        self.lock = threading.RLock()

    def take(self, size_bytes: int) -> _Piece:
        padded_bytes = -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
        with self.lock:
            chunk = next((one for one in self.chunks if one.used_bytes + padded_bytes <= one.memory.numel()), None)
            if chunk is None:
                chunk = _Chunk(max(padded_bytes, _CHUNK_BYTES))
                self.chunks.append(chunk)
            start = chunk.used_bytes
            chunk.used_bytes += padded_bytes
            chunk.piece_count += 1
            return _Piece(self, chunk, chunk.memory[start : start + size_bytes])

    def end(self, chunk: _Chunk, read: Any) -> None:
        with self.lock:
            chunk.read = chunk.read if read is None else read
            chunk.piece_count -= 1
            if chunk.piece_count == 0:
                chunk.used_bytes = 0


class _Home:
    """The streams, the arena and the experience of a device."""

    def __init__(self, device: torch.device, in_use_bytes: Callable[[], int]) -> None:
        if not hasattr(torch._C, "_storage_Use_Count"):
            raise Unsupported(f"PyTorch {torch.__version__} does not tell who uses a storage, which offload needs; use PyTorch 2.11")
        self.device, self.in_use_bytes = device, in_use_bytes
        self.down, self.up = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self.arena = _Arena()
        # By limit, how much the last pass had to move.
        self.goals: dict[int, int] = {}

    def may_move(self, tensor: torch.Tensor) -> bool:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device != self.device:
            return False
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
            return False
        base = tensor if tensor._base is None else tensor._base
        # Parameters stay on the device anyway.
        if base.is_leaf and base.requires_grad:
            return False
        return tensor.untyped_storage().nbytes() >= _LEAST_BYTES and not torch.cuda.is_current_stream_capturing()


def _bytes_of(storage: Any, device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
