"""`%load_ext gpumem` in a notebook: PyTorch and CuPy allocate from gpumem, and `%gpumem` shows what they hold."""

from __future__ import annotations

import sys
from typing import Any

import _gpumem_start

from . import _summary


def load(shell: Any) -> None:
    """Installs gpumem, or prepares it for the import of the libraries, and adds the magic."""
    _gpumem_start.start(_gpumem_start.Request(",".join(_gpumem_start.LIBRARIES)))
    shell.register_magic_function(lambda line: print(status_text()), "line", "gpumem")
    print(f"gpumem: {_state()}; %gpumem shows what they hold")


def _state() -> str:
    imported = [name for name in _gpumem_start.LIBRARIES if name in sys.modules]
    if imported:
        return f"{' and '.join(imported)} allocate from it"
    return f"{' and '.join(_gpumem_start.LIBRARIES)} will allocate from it once they are imported"


def status_text() -> str:
    """What `%gpumem` prints."""
    pools = _summary._pools()
    if not pools:
        return f"gpumem: {_state()}; nothing is allocated yet"
    return "\n\n".join(pool.status_text() for _, pool in sorted(pools.items()))
