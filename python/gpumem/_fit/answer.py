"""The answer, as text and as JSON."""

from __future__ import annotations

import dataclasses
import linecache
from typing import Any

from .devices import Device, size_text
from .replay import Replayed

_ROWS = 12
# Of a line of the script.
_SOURCE_WIDTH = 80


@dataclasses.dataclass
class Answer:
    name: str
    device: Device
    outside_bytes: int
    is_own_context: bool
    summary: dict[str, Any]
    replay: Replayed
    refused_place: dict[str, Any] | None
    # The argument, its largest value that fits (0 if none does), and what was tried.
    bisected: tuple[str, int, dict[int, bool]] | None = None

    @property
    def fits(self) -> bool:
        return self.replay.fits

    @property
    def needed_bytes(self) -> int:
        return self.replay.reserved_bytes + self.outside_bytes

    def first_line(self) -> str:
        size = size_text(self.device.total_bytes)
        needed = f"peak {size_text(self.needed_bytes)}, {size_text(self.replay.reserved_bytes)} of it PyTorch's"
        if self.fits:
            return f"{self.name}: fits in {size}: {needed}"
        place = self.refused_place
        where = f": {place['line']} asks for {size_text(place['size_bytes'])} ({place['phase']})" if place else ""
        return f"{self.name}: does not fit in {size}{where}; {needed}"

    def text(self) -> str:
        summary, lines = self.summary, []
        if self.bisected is not None:
            lines.append(self._bisected_text())
        lines.append(self.first_line())
        peak = summary["peak_place"]
        lines.append(f"  allocated {size_text(summary['peak_allocated_bytes'])} at its peak: {peak['phase']}, {peak['line']}")
        lines.append(f"  reserved  {size_text(self.replay.reserved_bytes)} by gpumem's pool")
        pytorch_bytes = self.replay.pytorch_bytes
        lines.append(f"  pytorch   its own allocator would {f'reserve {size_text(pytorch_bytes)}' if pytorch_bytes is not None else 'run out of memory'}")
        whose = "--context" if self.is_own_context else f"assumed for {self.device.class_text}; --context sets it"
        lines.append(f"  outside   {size_text(self.outside_bytes)} of the context and the libraries ({whose})")
        lines.append(f"  ran       {self._ran_text()}")
        lines += [f"  assumed   {text}" for text in self._notes()]
        lines += [f"  advice    {text}" for text in self._advice()]
        lines += ["", "held at the peak", *self._holders()]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        summary = self.summary
        found = {
            "name": self.name,
            "fits": self.fits,
            "device_bytes": self.device.total_bytes,
            "device": self.device.name,
            "outside_bytes": self.outside_bytes,
            "needed_bytes": self.needed_bytes,
            "peak_reserved_bytes": self.replay.reserved_bytes,
            "pytorch_reserved_bytes": self.replay.pytorch_bytes,
            "peak_allocated_bytes": summary["peak_allocated_bytes"],
            "peak_tensor_bytes": summary["peak_tensor_bytes"],
            "peak_place": summary["peak_place"],
            "refused": self.refused_place,
            "helpful_conf": self.replay.helpful_conf,
            "steps": summary["steps"],
            "ended": summary["ended"],
            "seconds": summary["seconds"],
            "allocations": summary["allocations"],
            "holders": summary["holders"],
            "assumed": summary["notes"],
            "advice": self._advice(),
        }
        if self.bisected is not None:
            name, value, tried = self.bisected
            found["bisected"] = {"argument": name, "largest": value or None, "tried": {str(one): fits for one, fits in tried.items()}}
        return found

    def _bisected_text(self) -> str:
        assert self.bisected is not None
        name, value, tried = self.bisected
        if not value:
            return f"--{name}: not even 1 fits"
        above = min((one for one, fits in tried.items() if not fits), default=None)
        return f"--{name} {value} is the largest that fits" + (f"; {above} does not" if above else ", as far as --most")

    def _ran_text(self) -> str:
        summary = self.summary
        steps = summary["steps"]
        made = "no step of an optimizer" if not steps else "1 step of the optimizer" if steps == 1 else f"{steps} steps of the optimizer"
        return f"{made}, {summary['allocations']:,} allocations, in {summary['seconds']:.1f} s; stopped {summary['ended']}"

    def _notes(self) -> list[str]:
        found = []
        for note in self.summary["notes"]:
            times = f" ({note['count']} times)" if note["count"] > 1 else ""
            found.append(f"{note['line']}: {note['text']}{times}" if note["line"] else f"{note['text']}{times}")
        return found

    def _advice(self) -> list[str]:
        found = []
        if self.replay.helpful_conf:
            found.append(f"GPUMEM_CONF={self.replay.helpful_conf} fits")
        limit_bytes = self.device.total_bytes - self.outside_bytes
        if self.fits and self.replay.reserved_bytes > 0.95 * limit_bytes:
            found.append("less than 5 % is left, which is within what a prediction can miss")
        if self.fits:
            return found
        missing = self.replay.reserved_bytes - limit_bytes
        found.append(f"{size_text(missing)} are missing: --bisect finds the largest batch; accumulate gradients over smaller ones")
        saved = sum(holder["live_bytes"] for holder in self.summary["holders"] if holder["place"]["phase"] == "forward")
        if saved > self.summary["peak_allocated_bytes"] // 4:
            found.append(f"{size_text(saved)} at the peak are of the forward pass: gpumem.torch.offload(), or torch.utils.checkpoint")
        return found

    def _holders(self) -> list[str]:
        holders = self.summary["holders"]
        shown = [_row(one["live_bytes"], one["block_count"], _holder_text(one)) for one in holders[:_ROWS]]
        if len(holders) > _ROWS:
            rest = holders[_ROWS:]
            total, count = sum(one["live_bytes"] for one in rest), sum(one["block_count"] for one in rest)
            shown.append(_row(total, count, f"{len(rest)} other lines"))
        return shown


def _row(live_bytes: int, block_count: int, text: str) -> str:
    blocks = "block " if block_count == 1 else "blocks"
    return f"  {size_text(live_bytes):>12}  in {block_count:>5} {blocks}  {text}"


def _holder_text(holder: dict[str, Any]) -> str:
    place, operation = holder["place"], holder["operation"]
    file, _, number = place["line"].rpartition(":")
    source = linecache.getline(file, int(number)).strip() if number.isdigit() else ""
    return f"{place['line']} ({place['phase']}): {operation or source[:_SOURCE_WIDTH]}".rstrip(": ")
