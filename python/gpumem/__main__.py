"""`python -m gpumem`: runs Python programs on gpumem (`run`), and is the command `gpumem`, which reads, replays and draws records of GPU
allocations. `python -m gpumem --help` lists what it does."""

import os
import sys


def main() -> None:
    if sys.argv[1:2] == ["run"]:
        from . import _run

        if _run.runs_python(sys.argv[2:]):
            return _run.main(sys.argv[2:])
    if sys.argv[1:2] == ["fit"]:
        from ._fit.command import main as fit

        raise SystemExit(fit(sys.argv[2:]))
    arguments = sys.argv[1:]
    if arguments[:1] == ["doctor"] and not any(argument.startswith("--python") for argument in arguments):
        # It looks at the packages of this Python.
        arguments += ["--python", sys.executable]
    from ._native import PROGRAM

    try:
        # The name that usage texts show, and the commands that it advises.
        os.execv(PROGRAM, ["python -m gpumem", *arguments])
    except OSError as error:
        raise SystemExit(f"cannot start {PROGRAM}: {error.strerror}; install the wheel again") from error


if __name__ == "__main__":
    main()
