"""Modules that stand for CuPy, PyTorch and RMM without a GPU, and processes of their own that a test looks at."""

import atexit
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import types
from pathlib import Path

FOLDER = Path(__file__).parent


@functools.cache
def missing():
    """Builds the extension module of standin.cpp. Returns why it cannot be built; empty if it is."""
    include = sysconfig.get_paths()["include"]
    if "STANDIN" in os.environ:
        return ""
    if not (Path(include) / "Python.h").exists():
        return "the headers of Python are not installed"
    if shutil.which("c++") is None:
        return "no C++ compiler"
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    library = Path(folder.name) / f"standin{sysconfig.get_config_var('EXT_SUFFIX')}"
    command = ["c++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-Wno-cast-function-type"]
    subprocess.run([*command, "-fPIC", "-shared", f"-I{include}", str(FOLDER / "standin.cpp"), "-o", str(library)], check=True)
    # Processes of tests load the same file.
    os.environ["STANDIN"] = str(library)
    return ""


@functools.cache
def torch_folder():
    """Makes a folder with a package `torch` that stands for PyTorch (torch_standin), and returns it, for PYTHONPATH."""
    assert not missing()
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    libraries = Path(folder.name) / "torch" / "lib"
    libraries.mkdir(parents=True)
    shutil.copy(FOLDER / "torch_standin" / "__init__.py", libraries.parent)
    command = ["c++", "-std=c++17", "-O1", "-fPIC", "-shared", str(FOLDER / "torch_standin" / "c10.cpp"), "-o", str(libraries / "libc10.so")]
    subprocess.run(command, check=True)
    shutil.copy(libraries / "libc10.so", libraries / "libc10_cuda.so")
    return folder.name


class TheirOutOfMemoryError(MemoryError):
    """CuPy's class."""

    def __init__(self, size, total, limit=0):
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes, limit set to: {limit:,} bytes).")
        self._size, self._total, self._limit = size, total, limit


def extension():
    """The extension module of standin.cpp, which `missing` has built."""
    specification = importlib.util.spec_from_file_location("standin", os.environ["STANDIN"])
    native = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(native)
    return native


def load(version="14.2.0"):
    """Puts modules of CuPy's names in place, and returns the extension module behind them."""
    native = extension()
    native.allocator = None
    cuda = types.SimpleNamespace(
        CFunctionAllocator=native.CFunctionAllocator,
        memory=types.SimpleNamespace(OutOfMemoryError=TheirOutOfMemoryError),
        runtime=types.SimpleNamespace(getDevice=native.get_device),
        set_allocator=lambda allocator: setattr(native, "allocator", allocator),
    )
    backends = types.SimpleNamespace(cuda=types.SimpleNamespace(stream=native))
    sys.modules.update(cupy=types.SimpleNamespace(cuda=cuda, __version__=version), cupy_backends=backends)
    sys.modules.update({"cupy_backends.cuda": backends.cuda, "cupy_backends.cuda.stream": native})
    return native


def run(code, **environment):
    """Runs Python code in a process of its own."""
    paths = [str(FOLDER), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)


CUPY = "import standin\ncupy = standin.load()\nimport gpumem, gpumem.cupy\ngpumem.cupy.install()\n"
"""The first lines of a process that has CuPy's stand-in, as `cupy`, on gpumem."""
