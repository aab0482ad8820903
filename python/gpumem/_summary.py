"""What a process says at its end: the peaks of its pools, the refused requests, and the lines that held most."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from . import Error, Pool
from ._native import PROGRAM

# The lines that are shown.
_HOLDER_COUNT = 5
# Seconds; a million requests take about one.
_REPORT_WITHIN = 60

# What `python -m gpumem run` runs; none in processes that GPUMEM_INSTALL has reached.
_program: str | None = None
_is_json = False
_duration_s: float | None = None
_outcome = "has ended"


def begin(program: str, is_json: bool) -> None:
    global _program, _is_json
    _program, _is_json = program, is_json


def end(duration_s: float, error: BaseException | None) -> None:
    """Notes how the program has ended. Handlers of `atexit` run before the summary is printed."""
    global _duration_s, _outcome
    _duration_s = duration_s
    status = error.code if isinstance(error, SystemExit) else None
    if error is not None and not isinstance(error, SystemExit):
        _outcome = f"has ended with {type(error).__name__}"
    elif status not in (None, 0):
        _outcome = f"has ended with status {status if isinstance(status, int) else 1}"


def at_end(has_summary: bool) -> None:
    """Has the pools write what they have recorded, and writes the summary to the standard error: the program's output is on the standard
    output."""
    pools = sorted(_pools().items())
    if os.environ.get("GPUMEM_TRACE"):
        for _, pool in pools:
            _flush(pool)
    if not has_summary:
        return
    devices = [_figures(ordinal, pool) for ordinal, pool in pools]
    record = os.environ.get("GPUMEM_TRACE", "").replace("%p", str(os.getpid()))
    # The record does not tell devices apart.
    if record and len(devices) == 1 and "gpumem.torch" in sys.modules:
        devices[0]["pytorch_reserved_bytes"] = _pytorch_bytes(record)
    if not devices and _program is None:
        return
    text = json.dumps({"program": _name(), "process": os.getpid(), "devices": devices}) if _is_json else _text(devices)
    print(text, file=sys.stderr, flush=True)


def _flush(pool: Pool) -> None:
    try:
        pool.flush_trace()
    except Error as error:
        print(f"gpumem: the recording may lack its end: {error}", file=sys.stderr)


def _pools() -> dict[int, Pool]:
    """The pools that the process has, by device."""
    found: dict[int, Pool] = {}
    for name in ("torch", "cupy"):
        module: Any = sys.modules.get(f"gpumem.{name}")
        if module is not None:
            found.update(module._made_pools())
    return found


def _name() -> str:
    name = _program or f"process {os.getpid()}"
    rank = os.environ.get("RANK")
    return name if rank is None else f"{name}, rank {rank[:10]}"


def _figures(ordinal: int, pool: Pool) -> dict[str, Any]:
    try:
        status = json.loads(pool.status_json())
    except Error as error:
        return {"device": ordinal, "error": str(error)}
    counters = pool.status()
    holders = sorted(status["tags"], key=lambda tag: -int(tag["peak_bytes"]))
    before = _peaks_before(ordinal)
    return {
        "device": ordinal,
        "allocated_peak_bytes": max(counters.in_use_peak_bytes, before[0]),
        "reserved_peak_bytes": max(counters.reserved_peak_bytes, before[1]),
        "allocation_count": counters.allocation_count,
        "refusal_count": counters.refusal_count,
        "holders": [
            {"name": tag["tag"], "peak_bytes": tag["peak_bytes"], "in_use_bytes": tag["in_use_bytes"], "block_count": tag["block_count"]}
            for tag in holders[:_HOLDER_COUNT]
        ],
    }


def _pytorch_bytes(record: str) -> int | None:
    """What PyTorch's own allocator would have reserved; None if it would have run out of memory, or if the record does not tell."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUMEM_")}
    try:
        done = subprocess.run([PROGRAM, "report", "--json", record], capture_output=True, env=environment, timeout=_REPORT_WITHIN)
        found: int | None = json.loads(done.stdout)["pytorch_reserved_bytes"]
    except (OSError, ValueError, KeyError, subprocess.SubprocessError):
        return None
    return found


def _peaks_before(ordinal: int) -> tuple[int, int]:
    """The peaks before the program's last `reset_peak_memory_stats`."""
    module: Any = sys.modules.get("gpumem.torch")
    peaks: tuple[int, int] = module._peaks.get(ordinal, (0, 0)) if module is not None else (0, 0)
    return peaks


def _text(devices: list[dict[str, Any]]) -> str:
    after = "" if _duration_s is None else f" after {_duration_s:.1f} s"
    lines = [f"\ngpumem: {_name()} {_outcome}{after}"]
    if not devices:
        lines.append("  note  nothing was allocated from gpumem: the program has used neither PyTorch nor CuPy on a GPU")
    for device in devices:
        lines += _device_lines(device)
    recorded = os.environ.get("GPUMEM_TRACE", "").replace("%p", str(os.getpid()))
    if recorded and devices:
        lines.append(f"  recorded   {recorded}; next: python -m gpumem report {recorded}")
    return "\n".join(lines)


def _device_lines(device: dict[str, Any]) -> list[str]:
    lines = [f"  device {device['device']}"]
    if "error" in device:
        return [*lines, f"    its figures cannot be read: {device['error']}"]
    allocated, reserved = device["allocated_peak_bytes"], device["reserved_peak_bytes"]
    ratio = f", {reserved / allocated:.3f} times as much" if allocated else ""
    lines.append(f"    allocated  {_size(allocated)} at most")
    lines.append(f"    reserved   {_size(reserved)} at most{ratio}")
    natively = device.get("pytorch_reserved_bytes")
    if natively is not None:
        more = f", {natively / allocated:.3f} times as much" if allocated else ""
        lines.append(f"    natively   {_size(natively)}{more}, by PyTorch's own allocator as the recording tells")
    lines.append(f"    refused    {device['refusal_count']:,} of {device['allocation_count'] + device['refusal_count']:,} requests")
    if not device["holders"]:
        lines.append("    held by    --stacks names the lines (stacks in GPUMEM_INSTALL)")
        return lines
    lines.append("    held at most, by line")
    width = max(len(holder["name"]) for holder in device["holders"])
    lines += [
        f"      {holder['name']:<{width}}  {_size(holder['peak_bytes']):>12}, and {_size(holder['in_use_bytes'])} at the end"
        for holder in device["holders"]
    ]
    return lines


def _size(size_bytes: int) -> str:
    """A size in the format of gpumem's reports."""
    if size_bytes < 1 << 10:
        return f"{size_bytes} bytes"
    for shift, unit in ((30, "GiB"), (20, "MiB")):
        if size_bytes >= 1 << shift:
            return f"{size_bytes / (1 << shift):.3f} {unit}"
    return f"{size_bytes / 1024:.3f} KiB"
