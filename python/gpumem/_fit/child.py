"""The process that runs the script: `python -m gpumem._fit.child OPTIONS -- SCRIPT …`. It writes the record, and a summary in JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import sys
import sysconfig
import time
import traceback
from pathlib import Path
from typing import Any, Optional

from .devices import Device
from .record import Place, Record


class Enough(BaseException):
    """The script has made the steps that were asked for. No `except Exception` of a script catches it."""


def main(options: dict[str, Any]) -> None:
    began = time.perf_counter()
    try:
        import torch
    except ImportError as error:
        _write(options, {"failed": f"PyTorch cannot be imported ({error}); install it in this environment"})
        return
    if not hasattr(getattr(torch._C, "_acc", None), "register_python_privateuseone_device_guard"):
        _write(options, {"failed": f"PyTorch {torch.__version__} lacks what fake tensors need here; install 2.11 or later to predict"})
        return
    run = _Run(options)
    summary = run.run()
    summary["seconds"] = round(time.perf_counter() - began, 3)
    run.record.write(Path(options["record"]), options["name"])
    _write(options, summary)


def _write(options: dict[str, Any], summary: dict[str, Any]) -> None:
    Path(options["summary"]).write_text(json.dumps(summary))


class _Run:
    """One run of a script."""

    def __init__(self, options: dict[str, Any]) -> None:
        from . import cuda
        from .clock import Clock
        from .mode import Lines, Mode, Notes, State

        self.options = options
        self.record, self.state, self.notes = Record(Clock(options["multiprocessor_count"])), State(), Notes()
        # What is not the script's own: this package, PyTorch, the interpreter and what is installed.
        import torch

        skipped = [str(Path(__file__).parents[1]), str(Path(torch.__file__).parent)]
        skipped += [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
        self.lines = Lines([os.getcwd() + "/"], skipped)
        self.mode = Mode(self.record, self.state, self.lines, self.notes, options)
        device = Device(options["device_name"], options["total_bytes"], tuple(options["capability"]), options["multiprocessor_count"])
        cuda.install(self.mode, device, options["outside_bytes"])
        self.step_counts: dict[int, int] = {}
        self._watch_steps()
        self._watch_backward()

    def run(self) -> dict[str, Any]:
        failed: Optional[str] = None
        ended = "at its end"
        try:
            with self.mode:
                self._script()
        except Enough:
            ended = "after its steps"
        except SystemExit as error:
            if error.code not in (None, 0):
                failed = f"the script ended with {error.code}"
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.record.close()
            failed = self._explain(error)
        self.record.close()
        return self._summary(failed, ended)

    def _script(self) -> None:
        options = self.options
        sys.argv = [options["script"], *options["arguments"]]
        if options["is_module"]:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(options["script"], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(options["script"]).resolve().parent))
            runpy.run_path(options["script"], run_name="__main__")

    def _explain(self, error: BaseException) -> str:
        frames = traceback.extract_tb(error.__traceback__)
        package = str(Path(__file__).parents[1])
        own = [frame for frame in frames if not frame.filename.startswith(package) and not frame.filename.startswith("<frozen")]
        shown = traceback.format_list(own) + traceback.format_exception_only(type(error), error)
        sys.stderr.write("Traceback (most recent call last):\n" + "".join(shown))
        from torch._subclasses.fake_tensor import UnsupportedOperatorException

        if isinstance(error, UnsupportedOperatorException):
            return f"{self._line_of(own)}: PyTorch has no rule for the sizes of {error.func}, so what follows is unknown; take another operation"
        text = str(error).strip().splitlines()
        return f"the script raised {type(error).__name__}{': ' + text[0] if text else ''}"

    def _line_of(self, frames: list[traceback.FrameSummary]) -> str:
        found = [name for frame in frames if (name := self.lines.name(frame.filename)) is not None]
        numbers = [frame.lineno for frame in frames if self.lines.name(frame.filename) is not None]
        return f"{found[-1]}:{numbers[-1]}" if found else "the script"

    def _summary(self, failed: Optional[str], ended: str) -> dict[str, Any]:
        record = self.record
        counted = max(self.step_counts.values(), default=0)
        places: dict[Place, int] = {}
        for block in record.blocks:
            places.setdefault(block.place, len(places))
        return {
            "failed": failed,
            "ended": ended,
            "steps": counted,
            "peak_allocated_bytes": record.peak_bytes,
            "peak_tensor_bytes": record.tensor_peak_bytes,
            "peak_event": record.peak_event,
            "events": len(record.events),
            "allocations": len(record.blocks),
            "peak_place": dataclasses.asdict(record.blocks[record.events[record.peak_event - 1][1]].place) if record.peak_event else None,
            "holders": [dataclasses.asdict(holder) for holder in record.holders(record.peak_event)],
            "places": [dataclasses.asdict(place) for place in places],
            "block_places": [places[block.place] for block in record.blocks],
            "notes": [{"text": text, "line": line, "count": count} for (text, line), count in self.notes.found.items()],
        }

    # What the script does.

    def _watch_steps(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        state, wanted = self.state, self.options["steps"]

        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            state.phase = "optimizer step"

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            state.phase = "forward"
            counts = self.step_counts
            counts[id(optimizer)] = counts.get(id(optimizer), 0) + 1
            # With several optimizers, all have made their steps, unless one is rarely used.
            if wanted and (min(counts.values()) >= wanted or max(counts.values()) >= 4 * wanted):
                self.record.close()
                raise Enough

        register_optimizer_step_pre_hook(before)
        register_optimizer_step_post_hook(after)

    def _watch_backward(self) -> None:
        import torch

        state, engine = self.state, torch.autograd._engine_run_backward

        def run(*args: Any, **kwargs: Any) -> Any:
            before = state.phase, state.backward_line
            state.phase, state.backward_line = "backward", self.lines.current()
            try:
                return engine(*args, **kwargs)
            finally:
                state.phase, state.backward_line = before

        torch.autograd._engine_run_backward = run
        call = torch.nn.Module.__call__

        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            if state.phase == "setup":
                state.phase = "forward"
            return call(module, *args, **kwargs)

        torch.nn.Module.__call__ = called


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
