"""The annotations, by mypy: `cargo xtask ci python` names a Python that has it in MYPY."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import gpumem

MYPY = os.environ.get("MYPY", "")
CONFIGURATION = Path(__file__).parents[1] / "pyproject.toml"
PROGRAM = Path(__file__).with_name("typed_program.py")


@unittest.skipUnless(MYPY, "MYPY names no Python")
class TypesTest(unittest.TestCase):
    def checked(self, *arguments):
        with tempfile.TemporaryDirectory() as cache:
            command = [MYPY, "-m", "mypy", "--strict", "--config-file", CONFIGURATION, "--cache-dir", cache, *arguments]
            # The package as it is installed.
            environment = {**os.environ, "MYPYPATH": str(Path(gpumem.__file__).parents[1]), "LD_LIBRARY_PATH": ""}
            return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=PROGRAM.parent)

    def test_the_package_passes(self):
        done = self.checked("-p", "gpumem")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_program_passes_and_runs(self):
        done = self.checked(PROGRAM)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_mistakes_are_found(self):
        right, wrong = PROGRAM.read_text().split("# MISTAKES\n")
        lines = [line.removeprefix("# ") for line in wrong.splitlines()]
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program.py"
            program.write_text("import gpumem\n\n" + "\n".join(lines) + "\n")
            found = self.checked(program).stdout
        for number, line in enumerate(lines, start=3):
            self.assertIn(f"program.py:{number}: error", found, line)


if __name__ == "__main__":
    unittest.main()
