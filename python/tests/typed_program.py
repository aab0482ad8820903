"""A user's program that type checkers accept, and that runs. The lines below MISTAKES are refused by them."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import gpumem


def limits() -> list[gpumem.Limit | None]:
    return [1 << 30, "2GiB", "50%", "80%free", None]


def release(is_last_resort: bool) -> None:
    assert is_last_resort in (False, True)


def main(arguments: list[str]) -> int:
    version: tuple[int, int, int] = gpumem.version()
    reports: list[str] = []
    for limit in limits():
        with gpumem.Pool(0, hard_limit=limit, soft_limit=limit, on_out_of_memory=reports.append) as pool:
            pool.set_hard_limit(limit)
    with tempfile.TemporaryDirectory() as folder, gpumem.Pool(conf="backend:caching", trace=Path(folder) / "a.trace") as pool:
        stream: gpumem.Stream = pool.stream()
        other, borrowed = pool.long_lived(0), pool.borrow(stream.raw)
        with pool.scope("forward") as scope, pool.on_shortage("a cache", release), pool.alloc(1 << 20, stream) as block:
            address: int = block.address
            other.wait_for(stream)
            block.record_use(other)
        peak: int = scope.usage.peak_bytes
        status: gpumem.Status = pool.status()
        text: str = f"{status.in_use_bytes} {pool.status_text()} {pool.status_json()} {address} {peak} {version} {gpumem.__version__}"
        pool.set_soft_limit("50%")
        pool.sleep(keep="nothing")
        pool.wake()
        part: gpumem.Pool = pool.part("weights")
        released: int = pool.trim(keep=0) + pool.reclaim()
        pool.flush_trace(timeout_ms=1000)
        part.close()
        borrowed.close()
        stream.close()
    try:
        gpumem.Pool(hard_limit="lots")
    except gpumem.InvalidArgument as error:
        reports.append(str(error))
    return 0 if text and released >= 0 and len(reports) == 1 and os.getpid() else len(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv))

# MISTAKES
# gpumem.Pool(hard_limit=1.5)
# gpumem.Pool("0")
# gpumem.Pool().alloc("1MiB", gpumem.Pool().stream())
# gpumem.Pool().status().no_such_figure
# gpumem.Pool().stream().raw.upper()
# gpumem.Pool(on_out_of_memory=lambda: None)
# gpumem.Pool().scope(1)
# gpumem.Pool().no_such_method()
