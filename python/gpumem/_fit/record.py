"""The record of a run: what was allocated and freed, in order, each with the line of the script that asked for it."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from pathlib import Path


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
    # Streams that `record_stream` named.
    is_used_elsewhere: bool = False


@dataclasses.dataclass(frozen=True)
class Holder:
    """What the blocks of one line and phase hold."""

    place: Place
    operation: str
    live_bytes: int
    block_count: int


class Record:
    """Allocations and frees in the text form that `gpumem replay` reads."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        # Index of a block, and a letter: `a` allocation, `f` free, `c` the free takes effect.
        self.events: list[tuple[str, int]] = []
        self.in_use_bytes = 0
        self.peak_bytes = 0
        # Of tensors alone: without workspaces and temporaries.
        self.tensor_bytes = 0
        self.tensor_peak_bytes = 0
        # The number of events up to the peak.
        self.peak_event = 0
        self.is_closed = False
        self._pending: list[int] = []

    def allocate(self, size_bytes: int, stream: int, place: Place, operation: str) -> int:
        self.blocks.append(Block(size_bytes, stream, place, operation))
        index = len(self.blocks) - 1
        if self.is_closed:
            return index
        self.events.append(("a", index))
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
        self.events.append(("f", index))
        self.in_use_bytes -= block.size_bytes
        if not is_hidden(block.operation):
            self.tensor_bytes -= block.size_bytes
        if block.is_used_elsewhere:
            self._pending.append(index)

    def synchronize(self) -> None:
        """The host waits for the device, so that frees with uses on other streams take effect."""
        if not self.is_closed:
            self.events.extend(("c", index) for index in self._pending)
            self._pending.clear()

    def close(self) -> None:
        """Ends the record: what the interpreter frees later, while it takes the program down, is not part of it."""
        self.is_closed = True

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
        with path.open("w") as file:
            header = {"format": 1, "name": name, "what": "predicted by gpumem fit", "events": len(self.events)}
            print(f"#{json.dumps(header)}", file=file)
            for kind, index in self.events:
                block = self.blocks[index]
                if kind == "a":
                    file.write(f"a,{index},{block.size_bytes},{block.stream}\n")
                elif kind == "f":
                    file.write(f"f,{index},{block.stream}\n")
                else:
                    file.write(f"c,{index}\n")


WORKSPACE = "cuBLAS workspace"
# In front of the name of an operation.
INSIDE = "inside of "


def is_hidden(operation: str) -> bool:
    """True for memory that no tensor of the script has."""
    return operation == WORKSPACE or operation.startswith(INSIDE)
