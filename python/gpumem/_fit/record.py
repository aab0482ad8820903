"""The record of a run: what was allocated and freed, in order, each with the line of the script that asked for it."""

from __future__ import annotations

import dataclasses
import json
from bisect import bisect_left
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .clock import Clock


@dataclasses.dataclass(frozen=True)
class Place:
    """A line of the script, and what the script was doing."""

    line: str
    phase: str


@dataclasses.dataclass
class Block:
    size_bytes: int
    stream: int
    place: Place
    # The operation that allocated it.
    operation: str
    # Other streams that `record_stream` named.
    users: set[int] = dataclasses.field(default_factory=set)
    # When the streams that used it had done so, once it is freed.
    done_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class Holder:
    """What the blocks of one line and phase hold."""

    place: Place
    operation: str
    live_bytes: int
    block_count: int


class Record:
    """Allocations and frees in the text form that `gpumem replay` reads."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.blocks: list[Block] = []
        # Index of a block, and a letter: `a` allocation, `f` free; and when the host did it.
        self.events: list[tuple[str, int]] = []
        self._times_s: list[float] = []
        self.in_use_bytes = 0
        self.peak_bytes = 0
        # Of tensors alone: without workspaces and temporaries.
        self.tensor_bytes = 0
        self.tensor_peak_bytes = 0
        # The number of events up to the peak.
        self.peak_event = 0
        self.is_closed = False

    def allocate(self, size_bytes: int, stream: int, place: Place, operation: str) -> int:
        self.blocks.append(Block(size_bytes, stream, place, operation))
        index = len(self.blocks) - 1
        if self.is_closed:
            return index
        self._add("a", index)
        self.in_use_bytes += size_bytes
        if not is_hidden(operation):
            self.tensor_bytes += size_bytes
            self.tensor_peak_bytes = max(self.tensor_peak_bytes, self.tensor_bytes)
        if self.in_use_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_event = self.in_use_bytes, len(self.events)
        return index

    def free(self, index: int) -> None:
        if self.is_closed:
            return
        block = self.blocks[index]
        self._add("f", index)
        block.done_s = max(self.clock.ready_s(stream) for stream in (block.stream, *block.users))
        self.in_use_bytes -= block.size_bytes
        if not is_hidden(block.operation):
            self.tensor_bytes -= block.size_bytes
    def close(self) -> None:
        """Ends the record: what the interpreter frees later, while it takes the program down, is not part of it."""
        self.is_closed = True

    def _add(self, kind: str, index: int) -> None:
        self.events.append((kind, index))
        self._times_s.append(self.clock.host_s)

    def holders(self, event_count: int) -> list[Holder]:
        """Who holds memory after the first events, the largest first."""
        live: dict[int, None] = {}
        for kind, index in self.events[:event_count]:
            if kind == "a":
                live[index] = None
            elif kind == "f":
                live.pop(index, None)
        sums: dict[tuple[Place, str], list[int]] = defaultdict(lambda: [0, 0])
        for index in live:
            block = self.blocks[index]
            # The operations of one line are one holder, except memory that the line does not name.
            entry = sums[block.place, block.operation if is_hidden(block.operation) else ""]
            entry[0] += block.size_bytes
            entry[1] += 1
        found = [Holder(place, operation, *entry) for (place, operation), entry in sums.items()]
        return sorted(found, key=lambda holder: -holder.live_bytes)

    def write(self, path: Path, name: str) -> None:
        completed = self._completed()
        with path.open("w") as file:
            count = len(self.events) + sum(len(indices) for indices in completed.values())
            print(f"#{json.dumps({'format': 1, 'name': name, 'what': 'predicted by gpumem fit', 'events': count})}", file=file)
            for place, (kind, index) in enumerate(self.events):
                file.writelines(f"c,{one}\n" for one in completed.get(place, ()))
                block = self.blocks[index]
                if kind == "a":
                    file.write(f"a,{index},{block.size_bytes},{block.stream}\n")
                else:
                    file.write(f"f,{index},{block.stream}\n")
            file.writelines(f"c,{one}\n" for one in completed.get(len(self.events), ()))

    def _completed(self) -> dict[int, list[int]]:
        """The blocks whose free takes effect before an event, by the number of events before it: the device has then passed their last use.

        In the record such a block is nobody's until then, and everybody's from then on. A block that only its own stream has used is free on
        that stream at once. It is marked if that stream allocates nothing in between, so that other streams may get it."""
        completed: dict[int, list[int]] = defaultdict(list)
        allocated: dict[int, list[int]] = defaultdict(list)
        for place, (kind, index) in enumerate(self.events):
            if kind == "a":
                allocated[self.blocks[index].stream].append(place)
        if len(allocated) < 2 and not any(block.users for block in self.blocks):
            return completed
        for place, (kind, index) in enumerate(self.events):
            if kind == "a":
                continue
            block = self.blocks[index]
            passed = bisect_left(self._times_s, block.done_s, place + 1)
            own = allocated[block.stream]
            following = bisect_left(own, place)
            if block.users or following == len(own) or own[following] >= passed:
                completed[passed].append(index)
        return completed


WORKSPACE = "cuBLAS workspace"
# In front of the name of an operation.
INSIDE = "inside of "


def is_hidden(operation: str) -> bool:
    """True for memory that no tensor of the script has."""
    return operation == WORKSPACE or operation.startswith(INSIDE)
