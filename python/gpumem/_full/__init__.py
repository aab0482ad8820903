"""Compiles PyTorch's allocator on gpumem (allocator.cpp) against the installed PyTorch, once, and loads it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .._native import FOLDER, Error

__all__ = ["Unavailable", "build", "load"]

SOURCE = Path(__file__).parent
# The releases whose allocator class gpumem has been compiled against and compared with.
FIRST, LAST = (2, 11), (2, 15)
# Seconds; it takes about 6.
_COMPILES_WITHIN = 300


class Unavailable(Error):
    """The allocator cannot be compiled or loaded here."""


def load() -> Any:
    """The library with `gpumem_torch_full_install`."""
    if not FIRST <= _version() <= LAST:
        known = " to ".join(".".join(map(str, version)) for version in (FIRST, LAST))
        raise Unavailable(f"gpumem knows the allocator class of PyTorch {known}, and this is {torch.__version__}")
    library = ctypes.CDLL(str(build(SOURCE / "allocator.cpp")))
    library.gpumem_torch_full_install.argtypes, library.gpumem_torch_full_install.restype = (), ctypes.c_int
    return library


def build(source: Path, libraries: tuple[str, ...] = ()) -> Path:
    """The path of the compiled file, from the cache if it has been compiled for this PyTorch before. `libraries` are further ones of
    PyTorch's."""
    command = [*_command(source), *(f"-l:{library}" for library in libraries)]
    digest = hashlib.sha256(repr((command, torch.__version__, torch.version.git_version)).encode())
    for file in sorted({source, *SOURCE.glob("*.cpp"), *SOURCE.glob("*.h")}):
        digest.update(file.read_bytes())
    name = f"{source.stem}-{torch.__version__}-{digest.hexdigest()[:16]}.so"
    try:
        folder = _cache()
        with _alone(folder / f"{name}.lock"):
            if not (folder / name).exists():
                _compile(command, folder / name)
        return folder / name
    except OSError:
        # Without a cache, for this process alone. The file is in use until the process ends.
        place = Path(tempfile.mkdtemp(prefix="gpumem-")) / name
        _compile(command, place)
        return place


def _version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def _command(source: Path) -> list[str]:
    folder = Path(torch.__file__).parent
    headers = [SOURCE, folder / "include", *_cuda_headers(folder)]
    libraries = [FOLDER, folder / "lib"]
    return [
        *_compiler(),
        # PyTorch's headers need C++20 since 2.12.
        "-std=c++17" if _version() < (2, 12) else "-std=c++20",
        *("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *(f"-I{path}" for path in headers),
        str(source),
        *(part for path in libraries for part in (f"-L{path}", f"-Wl,-rpath,{path}")),
        *("-l:libgpumem_torch.so", "-l:libgpumem.so.0", "-lc10", "-lc10_cuda"),
    ]


def _compiler() -> list[str]:
    chosen = shlex.split(os.environ.get("CXX", ""))
    for command in [chosen] if chosen else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command
    raise Unavailable(f"there is no C++ compiler ({chosen[0] if chosen else 'c++, g++, clang++'}); install one, or set CXX")


def _cuda_headers(torch_folder: Path) -> list[Path]:
    """The folders with CUDA's headers: of NVIDIA's wheels, of Triton's, which has those that NVIDIA's lack, or of the toolkit."""
    sites = dict.fromkeys([torch_folder.parent, *(Path(path) for path in sys.path if path)])
    folders = [folder for site in sites for folder in sorted(site.glob("nvidia/*/include"))]
    folders += [site / "triton/backends/nvidia/include" for site in sites]
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders += [Path(home) / "include" for home in (*homes, "/usr/local/cuda") if home]
    found = [folder for folder in folders if (folder / "cuda_runtime_api.h").exists()]
    if not any((folder / "crt/host_config.h").exists() for folder in found):
        raise Unavailable("there are no headers of CUDA's runtime; install Triton, or the CUDA toolkit and set CUDA_HOME")
    return found


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    # Relative paths are invalid there.
    base = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    folder = base / "gpumem" / "torch"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keeps other processes from the same work. Where files cannot be locked they repeat it."""
    with open(path, "w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(command: list[str], place: Path) -> None:
    handle, made = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
    os.close(handle)
    try:
        print("gpumem: compiling the allocator for this PyTorch, once", file=sys.stderr)
        done = subprocess.run([*command, "-o", made], capture_output=True, text=True, timeout=_COMPILES_WITHIN)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["no output"]
            raise Unavailable(f"the compiler refuses the allocator for PyTorch {torch.__version__}: {errors[0]}")
        os.chmod(made, 0o755)
        os.replace(made, place)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"the compiler did not end within {_COMPILES_WITHIN} s") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(made)
