"""The command: its options, the runs of the script, and the answer."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .answer import Answer
from .devices import Device, Unreadable, cublas_light_workspace, cublas_workspace_bytes, outside_bytes, parse_device, parse_size
from .replay import NotReplayed, replay


class Failed(Exception):
    """There is no answer, and why."""


class Script(NamedTuple):
    name: str
    is_module: bool
    arguments: list[str]


def main(arguments: list[str]) -> int:
    """Runs the command. The status is 0 if the script fits, 1 if it does not, 2 if that cannot be said."""
    try:
        chosen, script = _parse(arguments)
        fit = _Fit(chosen, script)
        answer = fit.bisect(chosen.bisect) if chosen.bisect else fit.run([])
    except (Failed, Unreadable, NotReplayed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(answer.as_dict()) if chosen.json else answer.text())
    return 0 if answer.fits else 1


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, Script]:
    # What follows `--` is the script's.
    place = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        prog="python -m gpumem fit", usage="%(prog)s SCRIPT [options] [-- arguments of the script]",
        description=_ABOUT, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("script", metavar="SCRIPT", nargs="?", help="the program, which runs unchanged")
    add("-m", "--module", metavar="NAME", help="run a module in place of a script")
    add("--device", default="24GiB", metavar="SIZE|NAME", help="the device's memory, or its name, such as h100 [default: 24GiB]")
    add("--capability", metavar="N.N", help="its compute capability [default: the named device's, else 9.0 from 64 GiB on and 8.9 below]")
    add("--context", metavar="SIZE", help="what the context and the libraries hold outside the allocator [default: by a table]")
    add("--steps", type=int, default=3, metavar="N", help="stop after N steps of the optimizer; 0 runs the script to its end [default: 3]")
    add("--bisect", metavar="NAME", help="find the largest value of the script's argument --NAME that fits, such as batch-size")
    add("--most", type=int, default=1 << 16, metavar="N", help="the largest value that --bisect tries [default: 65536]")
    add("--profile", choices=("fast", "balanced", "tight"), help="the profile of gpumem's pool [default: balanced]")
    add("--value", type=float, default=0.0, metavar="X", help="what the script reads from the device where it is unknown [default: 0]")
    add("--share", type=float, default=1.0, metavar="X", help="of the most that a size can be, where it depends on unknown values [default: 1]")
    add("--record", metavar="FILE", help="keep the record, for `gpumem replay` and `gpumem view`")
    add("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(arguments[:place])
    if (chosen.script is None) == (chosen.module is None):
        raise Failed("name one script, or one module with -m; the script's own arguments follow --")
    if chosen.script is not None and not Path(chosen.script).is_file():
        raise Failed(f"there is no script {chosen.script}; name a file, or a module with -m")
    if not 0.0 <= chosen.share <= 1.0:
        raise Failed(f"--share {chosen.share} is not a number from 0 to 1")
    if chosen.steps < 0 or chosen.most < 1:
        raise Failed("--steps is 0 or more, and --most is 1 or more")
    return chosen, Script(chosen.script or chosen.module, chosen.module is not None, arguments[place + 1:])


class _Fit:
    def __init__(self, chosen: argparse.Namespace, script: Script) -> None:
        self.chosen, self.script = chosen, script
        self.device: Device = parse_device(chosen.device, chosen.capability)
        self.outside_bytes = parse_size(chosen.context) if chosen.context else outside_bytes(self.device)
        if self.outside_bytes >= self.device.total_bytes:
            raise Failed(f"--context {chosen.context} leaves nothing of the device; name less")

    def run(self, more: list[str]) -> Answer:
        """The answer for the script with more arguments."""
        with _folder() as folder:
            record = Path(self.chosen.record) if self.chosen.record else folder / "fit.csv"
            summary = self._run_script(folder, record, more)
            if summary.get("failed"):
                raise Failed(f"{self._name(more)}: {summary['failed']}; its memory up to there is no answer")
            if not summary["allocations"]:
                raise Failed(f"{self._name(more)}: nothing was allocated on a device; does the script use cuda?")
            limit_bytes = self.device.total_bytes - self.outside_bytes
            found = replay(record, limit_bytes, self.device.total_bytes, self.chosen.profile)
            return Answer(
                name=self._name(more), device=self.device, outside_bytes=self.outside_bytes, is_own_context=bool(self.chosen.context),
                summary=summary, replay=found, refused_place=_refused_place(record, summary, found.refused_event),
            )

    def bisect(self, name: str) -> Answer:
        """The answer for the largest value that fits, and the value. More memory for a larger value is assumed."""
        tried: dict[int, Answer] = {}

        def fits(value: int) -> bool:
            tried[value] = self.run([f"--{name.lstrip('-')}", str(value)])
            print(tried[value].first_line(), file=sys.stderr)
            return tried[value].fits

        least, above, value = 0, self.chosen.most + 1, 1
        while above - least > 1:
            if fits(value):
                least = value
            else:
                above = value
            value = _next_value(tried, self.device.total_bytes, least, above)
        answer = tried[least] if least else tried[1]
        answer.bisected = (name.lstrip("-"), least, {one: found.fits for one, found in tried.items()})
        return answer

    def _name(self, more: list[str]) -> str:
        return " ".join([self.script.name, *more])

    def _run_script(self, folder: Path, record: Path, more: list[str]) -> dict[str, Any]:
        options = {
            "script": self.script.name,
            "is_module": self.script.is_module,
            "arguments": [*self.script.arguments, *more],
            "name": Path(self.script.name).name,
            "record": str(record),
            "summary": str(folder / "summary.json"),
            "steps": self.chosen.steps,
            "number": self.chosen.value,
            "share": self.chosen.share,
            "device_name": self.device.name,
            "total_bytes": self.device.total_bytes,
            "capability": self.device.capability,
            "multiprocessor_count": self.device.multiprocessor_count,
            "outside_bytes": self.outside_bytes,
            "workspace_bytes": cublas_workspace_bytes(self.device),
            "light_workspace": cublas_light_workspace(),
        }
        (folder / "options.json").write_text(json.dumps(options))
        # The script sees no device, also where there is one. What it prints is not part of the answer.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        root = str(Path(__file__).parents[2])
        environment["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "gpumem._fit.child", str(folder / "options.json")]
        done = subprocess.run(command, env=environment, stdout=sys.stderr.fileno())
        written = folder / "summary.json"
        if not written.exists():
            raise Failed(f"{self._name(more)}: the process of the script ended with {done.returncode} and left no record")
        summary: dict[str, Any] = json.loads(written.read_text())
        return summary


def _next_value(tried: dict[int, Answer], most_bytes: int, least: int, above: int) -> int:
    """The value to try next: memory grows with it in about a line."""
    if above in tried and least in tried and len(tried) % 2:
        # Now and then the middle, as a line may bend.
        return (least + above) // 2
    ends = (least, above) if above in tried and least in tried else sorted(tried, key=lambda value: abs(value - least))[:2]
    guess = 4 * least
    if len(ends) == 2:
        one, other = ends
        slope = (tried[other].needed_bytes - tried[one].needed_bytes) / (other - one)
        if slope > 0:
            guess = int(one + (most_bytes - tried[one].needed_bytes) / slope)
    return max(least + 1, min(guess, above - 1, max(8 * least, 8)))


def _refused_place(record: Path, summary: dict[str, Any], event: int | None) -> dict[str, Any] | None:
    """The line that asks for what is refused, by the event's place in the record."""
    if event is None:
        return None
    with record.open() as lines:
        for number, line in enumerate(lines):
            if number == event + 1:
                _, index, size_bytes, _ = line.split(",")
                place: dict[str, Any] = summary["places"][summary["block_places"][int(index)]]
                return {**place, "size_bytes": int(size_bytes)}
    return None


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpumem-fit-") as name:
        yield Path(name)


_ABOUT = """\
Runs a PyTorch script without a GPU and says whether it would fit: tensors of the device have shapes and no memory, and the record of their
lives is replayed through gpumem's own pool."""

_EPILOG = """\
  python -m gpumem fit train.py --device 24GiB                         would it fit?
  python -m gpumem fit train.py --device h100 -- --batch-size 64       with arguments of the script
  python -m gpumem fit train.py --device 24GiB --bisect batch-size     the largest batch that fits
Exit status: 0 if it fits, 1 if it does not, 2 if that cannot be said."""
