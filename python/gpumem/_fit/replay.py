"""Replays of a record through gpumem's pool, by the command `gpumem`."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from .._native import PROGRAM


# The largest device that can be simulated.
_LARGE_BYTES = 4 << 40


class NotReplayed(Exception):
    """The command has not replayed the record, and why."""


@dataclasses.dataclass(frozen=True)
class Replayed:
    fits: bool
    # Without a limit, or with it if it fits.
    reserved_bytes: int
    # The number of events before the request that was refused.
    refused_event: int | None
    # Settings that it fits with, if it does not with the defaults.
    helpful_conf: str | None
    # By PyTorch's own allocator in the same memory; None if that would not suffice.
    pytorch_bytes: int | None


def replay(record: Path, limit_bytes: int, device_bytes: int, profile: str | None) -> Replayed:
    settings = [] if profile is None else ["--profile", profile]
    limited = _run(record, "--limit", f"{limit_bytes}", "--device", str(device_bytes), *settings)
    if limited["fits"]:
        return Replayed(True, int(limited["peak_reserved_bytes"]), None, None, limited["pytorch_reserved_bytes"])
    # A device that everything fits on shows how much is needed.
    free = _run(record, "--device", str(_LARGE_BYTES), *settings)
    helpful = None
    if profile is None:
        helpful = next((f"profile:{one}" for one in ("tight",) if _run(record, "--limit", str(limit_bytes), "--profile", one)["fits"]), None)
    return Replayed(False, int(free["peak_reserved_bytes"]), limited["refused_event"], helpful, limited["pytorch_reserved_bytes"])


def _run(record: Path, *options: str) -> dict[str, Any]:
    # PyTorch's streams live as long as the process.
    command = [str(PROGRAM), "replay", str(record), "--json", "--streams", "long-lived", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUMEM_")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    except OSError as error:
        raise NotReplayed(f"cannot start {PROGRAM}: {error.strerror}; install the wheel again") from error
    if done.returncode not in (0, 1) or not done.stdout.strip():
        raise NotReplayed(f"the record was not replayed: {done.stderr.strip() or done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    return found
