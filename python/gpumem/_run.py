"""`python -m gpumem run train.py …`: runs a Python program on gpumem, as `python train.py …` would run it."""

from __future__ import annotations

import argparse
import os
import pkgutil
import subprocess
import sys
import time
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import _gpumem_start

from . import _summary
from ._native import PROGRAM

_USAGE = """\
python -m gpumem run [options] train.py …
       python -m gpumem run [options] -m module …
       python -m gpumem run [options] [--] PROGRAM …"""

_DESCRIPTION = """\
Runs a Python program whose tensors and arrays come from gpumem: PyTorch and CuPy are installed on it as soon as the program imports
them, in processes that it starts too. A PROGRAM that is no Python file is started with a recording of its requests, and must use gpumem
itself; `python -m gpumem run -- PROGRAM --help` is the program's."""

_END = """\
The exit status is the program's. Under torchrun: `torchrun … -m gpumem run train.py`. A launcher that cannot be changed takes the
variable GPUMEM_INSTALL=torch instead."""

# Options of the command `gpumem run`, with the variables that hold them.
_VARIABLES = {
    "record": "GPUMEM_TRACE",
    "flight_recorder": "GPUMEM_FLIGHT_RECORDER",
    "limit": "GPUMEM_HARD_LIMIT",
    "profile": "GPUMEM_PROFILE",
    "spill": "GPUMEM_SPILL",
    "conf": "GPUMEM_CONF",
}
_FILES = ("record", "flight_recorder")


def runs_python(arguments: list[str]) -> bool:
    """True if the arguments of `run` name a Python program, or ask for help: others are for the command."""
    options, program = _split(arguments)
    return not program or "-h" in options or "--help" in options or program[0].startswith("-m") or _is_python(program[0])


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The options, and the program with its arguments, from `-m` or `--` on where it has one."""
    place = 0
    while place < len(arguments):
        argument = arguments[place]
        if argument == "--" or argument.startswith("-m") or not argument.startswith("-"):
            break
        place += 2 if argument[2:].replace("-", "_") in _VARIABLES else 1
    return arguments[:place], arguments[place:]


def _is_python(program: str) -> bool:
    return program.endswith((".py", ".pyw", ".pyz")) or (Path(program) / "__main__.py").exists()


def main(arguments: list[str]) -> None:
    given_options, program = _split(arguments)
    options = _parse(given_options)
    is_module = bool(program) and program[0].startswith("-m")
    if is_module:
        # `-mmodule` and `-m module`, as for Python.
        program = [program[0][2:], *program[1:]] if program[0] != "-m" else program[1:]
    if not program:
        _parser().error("it names no program; add the file of a script, or -m and a module")
    given = {name: str(getattr(options, name)) for name in _VARIABLES if getattr(options, name) is not None}
    _check_values(given)
    for name, value in given.items():
        # The program may change its folder.
        os.environ[_VARIABLES[name]] = os.path.abspath(value) if name in _FILES and value != "on" else value
    words = [*_gpumem_start.LIBRARIES]
    words += ["stacks"] if options.stacks else []
    words += [] if options.no_summary else ["summary"]
    # For processes that the program starts.
    os.environ[_gpumem_start.VARIABLE] = ",".join(words)
    _summary.begin(program[0], is_json=options.json)
    _gpumem_start.start(_gpumem_start.Request(",".join(words)))
    _run(*(_module(program) if is_module else _script(program)))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.record and options.no_record:
        parser.error("--record and --no-record exclude each other; leave one out")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpumem run",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--limit", metavar="SIZE", help="the hard limit of each device's pool: 20GiB, 50%%, 80%%free (GPUMEM_HARD_LIMIT)")
    add("--profile", metavar="NAME", help="fast, balanced or tight (GPUMEM_PROFILE)")
    add("--conf", metavar="KEY:VALUE,…", help="options of the pools by name (GPUMEM_CONF)")
    add("--spill", metavar="WHERE", help="more host memory for arrays of Rust and C, such as host:32GiB (GPUMEM_SPILL)")
    add("--record", metavar="FILE", help="record all requests into this file; %%p is the process ID (GPUMEM_TRACE)")
    add("--no-record", action="store_true", help="record nothing, which is the default of Python programs")
    add(
        "--flight-recorder",
        metavar="FILE",
        help="write the last requests into this file when a request is refused, or `on` for one in the folder for temporary files",
    )
    add("--stacks", action="store_true", help="name the lines of Python that hold the memory, in reports and in the summary")
    add("--no-summary", action="store_true", help="print nothing at the end")
    add("--json", action="store_true", help="print the summary as a line of JSON")
    return parser


def _check_values(given: dict[str, str]) -> None:
    """Refuses values that the program's pools would refuse, before it starts: the command knows them."""
    if not given:
        return
    options = [text for name, value in given.items() for text in (f"--{name.replace('_', '-')}", value)]
    # A program that uses no pool.
    check = [str(PROGRAM), "run", *([] if "record" in given else ["--no-record"]), *options, "--", str(PROGRAM), "--version"]
    try:
        done = subprocess.run(check, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise SystemExit(f"cannot start {PROGRAM}: {error.strerror}; install the wheel again") from error
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        raise SystemExit(done.returncode)


def _fail(text: str, status: int) -> SystemExit:
    """The end of a program that cannot be started, as Python reports it."""
    print(f"python -m gpumem run: {text}", file=sys.stderr)
    return SystemExit(status)


def _script(program: list[str]) -> tuple[CodeType, ModuleSpec | None, str]:
    """The code of a script, or of the folder or archive that has a `__main__`."""
    given, path = program[0], os.path.abspath(program[0])
    sys.argv[:] = program
    is_safe = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
    importer: Any = pkgutil.get_importer(path)
    if importer is not None:
        # Python 3.9 knows no other way into an archive.
        found: Any = importer.find_spec("__main__") if hasattr(importer, "find_spec") else spec_from_loader("__main__", importer)
        if found is not None:
            # It comes before all others, also where Python adds none for a script.
            sys.path[: 0 if is_safe else 1] = [path]
            return found.loader.get_code("__main__"), found, found.loader.get_filename("__main__")
    if not is_safe:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise _fail(f"can't open file {path!r}: [Errno {error.errno}] {error.strerror}", 2) from None
    return _compiled(source, path), None, path


def _compiled(source: bytes, path: str) -> CodeType:
    try:
        code: CodeType = compile(source, path, "exec", dont_inherit=True)
        return code
    except (SyntaxError, ValueError) as error:
        raise _shown(error, None)


def _module(program: list[str]) -> tuple[CodeType, ModuleSpec | None, str]:
    """The code of a module, or of the `__main__` of a package."""
    import runpy

    sys.argv[:] = program
    try:
        _, spec, code = runpy._get_module_details(program[0], runpy._Error)  # type: ignore[attr-defined]
    except runpy._Error as error:  # type: ignore[attr-defined]
        raise _fail(str(error), 1) from None
    sys.argv[0] = spec.origin
    return code, spec, spec.origin


def _run(code: CodeType, spec: ModuleSpec | None, path: str) -> None:
    """Runs code as the module `__main__`, and leaves its end to Python: status, signals, handlers."""
    main = ModuleType("__main__")
    # As Python leaves them for a script.
    names: dict[str, Any] = {"__builtins__": sys.modules["builtins"], "__annotations__": {}, "__file__": path, "__cached__": None}
    vars(main).update(names)
    if spec is None:
        main.__loader__ = SourceFileLoader("__main__", path)
    else:
        main.__spec__, main.__loader__, main.__package__ = spec, spec.loader, spec.parent
        vars(main)["__cached__"] = spec.cached
    sys.modules["__main__"] = main
    begin = time.monotonic()
    try:
        exec(code, vars(main))
    except SystemExit as error:
        _summary.end(time.monotonic() - begin, error)
        raise
    except BaseException as error:
        _summary.end(time.monotonic() - begin, error)
        assert error.__traceback__ is not None
        raise _shown(error, error.__traceback__.tb_next)
    _summary.end(time.monotonic() - begin, None)


def _shown(error: BaseException, traceback: Any) -> BaseException:
    """Has Python show an error that ends the program without the frames of this package, whatever the program has put for `excepthook`."""
    hook = sys.excepthook

    def without_ours(kind: type[BaseException], value: BaseException, _: Any) -> None:
        sys.excepthook = hook
        value = value.with_traceback(traceback)
        sys.last_traceback = traceback
        try:
            hook(kind, value, traceback)
        except Exception as failed:
            # As Python shows it, without this frame.
            failed.__traceback__ = failed.__traceback__.tb_next if failed.__traceback__ is not None else None
            print("Error in sys.excepthook:", file=sys.stderr)
            sys.__excepthook__(type(failed), failed, failed.__traceback__)
            print("\nOriginal exception was:", file=sys.stderr)
            sys.__excepthook__(kind, value, traceback)

    sys.excepthook = without_ours
    return error
