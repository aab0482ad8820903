"""The file that users install: its name, its metadata, and what it puts where. `cargo xtask ci python` names it in WHEEL."""

import email
import os
import re
import subprocess
import sys
import unittest
import zipfile
from pathlib import Path

import gpumem

WHEEL = os.environ.get("WHEEL", "")


@unittest.skipUnless(WHEEL, "WHEEL names no wheel")
class WheelTest(unittest.TestCase):
    def setUp(self):
        self.wheel = zipfile.ZipFile(WHEEL)
        self.addCleanup(self.wheel.close)
        self.names = self.wheel.namelist()
        self.folder = f"gpumem_pool-{gpumem.__version__}.dist-info"
        self.metadata = email.message_from_bytes(self.wheel.read(f"{self.folder}/METADATA"))

    def test_indexes_and_installers_accept_its_tag(self):
        tag = r"py3-none-manylinux_2_\d+_(x86_64|aarch64)"
        self.assertRegex(Path(WHEEL).name, rf"^gpumem_pool-{re.escape(gpumem.__version__)}-{tag}\.whl$")
        self.assertRegex(self.wheel.read(f"{self.folder}/WHEEL").decode(), rf"(?m)^Tag: {tag}$")

    def test_its_name_is_not_that_of_the_other_tool(self):
        self.assertEqual(self.metadata["Name"], "gpumem-pool")
        self.assertEqual(self.metadata["Version"], gpumem.__version__)
        # One module, what Python reads when it starts, and no command.
        self.assertEqual({name.split("/")[0] for name in self.names}, {"gpumem", "gpumem.pth", "_gpumem_start.py", self.folder})
        self.assertNotIn(f"{self.folder}/entry_points.txt", self.names)

    def test_it_states_its_licences_and_where_its_documentation_is(self):
        self.assertEqual(self.metadata["License-Expression"], "MIT OR Apache-2.0")
        for name, text in (("LICENSE-MIT", b"MIT License"), ("LICENSE-APACHE", b"Apache License")):
            self.assertIn(name, self.metadata.get_all("License-File"))
            self.assertIn(text, self.wheel.read(f"{self.folder}/licenses/{name}"))
        urls = dict(url.split(", ", 1) for url in self.metadata.get_all("Project-URL"))
        self.assertTrue(urls["Documentation"].startswith("https://"), urls)
        self.assertIn("Linux", str(self.metadata.get_all("Classifier")))

    def test_it_has_what_it_needs(self):
        for name in ("py.typed", "__init__.py", "torch.py", "cupy.py", "rmm.py", "_fit/command.py", "_full/allocator.cpp", "_full/gpumem.h", "lib/libgpumem.so.0", "lib/libgpumem_torch.so", "lib/libgpumem_cupy.so", "lib/libgpumem_python.so"):
            self.assertIn(f"gpumem/{name}", self.names)

    def test_python_reads_one_line_when_it_starts(self):
        text = self.wheel.read("gpumem.pth").decode()
        self.assertEqual(text, (Path(__file__).parents[1] / "gpumem.pth").read_text())
        (line,) = text.splitlines()
        # Python runs lines that begin so, and takes others for folders.
        self.assertTrue(line.startswith("import os; "), line)
        compile(line, "gpumem.pth", "exec")

    def test_the_command_knows_the_version_of_pytorch(self):
        root = Path(__file__).parents[2]
        tested = re.search(r"is tested with PyTorch ([0-9.]+);", (root / "python/gpumem/torch.py").read_text())
        doctor = (root / "crates/gpumem-cli/src/doctor/python.rs").read_text()
        self.assertIn(f'TESTED_TORCH: &str = "{tested[1]}"', doctor)

    def test_it_has_the_command(self):
        mode = self.wheel.getinfo("gpumem/bin/gpumem").external_attr >> 16
        self.assertTrue(mode & 0o111, oct(mode))
        command = [sys.executable, "-m", "gpumem"]
        done = subprocess.run([*command, "--help"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Usage: python -m gpumem <COMMAND>", done.stdout)
        done = subprocess.run([*command, "report", "no-such.trace"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("no-such.trace", done.stderr)


if __name__ == "__main__":
    unittest.main()
