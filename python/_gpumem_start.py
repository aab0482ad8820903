"""Makes libraries allocate from gpumem as soon as a program imports them.

gpumem.pth calls it when Python starts, if GPUMEM_INSTALL is set, and so do `python -m gpumem run` and the notebooks' extension. gpumem
itself, and what it needs, is imported after the library, so that processes without one start as fast as before.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    # Their imports would take longer than everything else here.
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Any

__all__ = ["Request", "from_environment", "request", "start"]

VARIABLE = "GPUMEM_INSTALL"
# RMM is not among them: its pool is made with the resource, before the program has chosen a device.
LIBRARIES = ("torch", "cupy")
WORDS = (*LIBRARIES, "stacks", "summary")


class Request:
    """What is installed, and how."""

    def __init__(self, text: str) -> None:
        words = [word.strip() for word in text.split(",") if word.strip()]
        unknown = [word for word in words if word not in WORDS]
        self.libraries = tuple(word for word in words if word in LIBRARIES)
        self.has_stacks, self.has_summary = "stacks" in words, "summary" in words
        self.error = ""
        if unknown or not self.libraries:
            problem = f"{unknown[0]!r} is none of its words" if unknown else "it names no library"
            self.error = (
                f"invalid {VARIABLE}={text[:200]!r}: {problem}; set it to {' or '.join(LIBRARIES)}, or to several of {', '.join(WORDS)} "
                f"with commas, or unset it"
            )


_request: Request | None = None


def request() -> Request | None:
    """What `start` was called with."""
    return _request


def from_environment() -> None:
    """Starts what GPUMEM_INSTALL names. A mistake in it is an error of the first import that it would concern: errors of this function
    are printed, and the program would go on without gpumem."""
    start(Request(os.environ[VARIABLE]))


def start(requested: Request) -> None:
    """Installs gpumem in the libraries that are imported already, and in the others once they are. The last call counts for those."""
    global _request
    if _request is None:
        # Before the handlers of the program, so that it runs last.
        atexit.register(_end, os.getpid())
    _request = requested
    names = LIBRARIES if requested.error else requested.libraries
    waiting = [name for name in names if name not in sys.modules]
    finders: list[Any] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    sys.meta_path[:] = [_Finder(waiting), *finders] if waiting else finders
    for name in names:
        if name not in waiting:
            _check()
            _install(name)


def _check() -> None:
    if _request is not None and _request.error:
        from gpumem import InvalidEnvironment

        raise InvalidEnvironment(_request.error)


def _install(name: str) -> None:
    # Its last line installs, because a program may import it first, and it the library.
    install = getattr(_imported(f"gpumem.{name}"), "_install_at_start", None)
    if install is not None:
        install()


def _end(process: int) -> None:
    # A forked child runs the handlers of its parent.
    if os.getpid() == process and "gpumem" in sys.modules and _request is not None:
        _imported("gpumem._summary").at_end(_request.has_summary)


def _imported(name: str) -> Any:
    __import__(name)
    return sys.modules[name]


class _Finder:
    """Finds the libraries as the other finders do, and has them installed after their import."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.names:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None) if finder is not self else None
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                # A folder of that name without a module is not the library.
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]
                return spec
        return None

    def is_imported(self, name: str) -> None:
        _install(name)
        # Not before: after an error, the program may import the library again.
        if name in self.names:
            self.names.remove(name)


class _Loader:
    """Executes a module as its own loader does, which the module then has, and tells the finder."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader, self._finder = loader, finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        _check()
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._finder.is_imported(module.__name__)


def _like_importlib(code: CodeType) -> CodeType:
    """Python leaves frames of this file out of the tracebacks of imports."""
    return code.replace(co_filename="<frozen importlib._bootstrap_external>")


_Loader.exec_module.__code__ = _like_importlib(_Loader.exec_module.__code__)
