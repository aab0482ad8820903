"""`python -m gpumem run`: programs run as by Python itself, and their libraries on gpumem. A package stands for PyTorch."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest
import zipfile
from pathlib import Path

import standin

ON_SIMULATOR = os.environ.get("GPUMEM_DRIVER") == "drop-in"
# What a program can see of the way in which it was started.
LOOK = """
import os, sys
print(__name__, __file__, __package__, __spec__ and __spec__.name, type(__loader__).__name__, sys.argv, sys.path[0])
print(sys.modules["__main__"].__dict__ is globals(), sorted(name for name in globals() if name.startswith("__")))
import beside
"""


class Folder(unittest.TestCase):
    """A test with a folder of programs."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.write("beside.py", "print('beside')\n")

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return name

    def start(self, *arguments, **environment):
        """Runs Python in the folder."""
        given = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, cwd=self.folder, env=given, capture_output=True, text=True, timeout=120)

    def gpumem(self, *arguments, **environment):
        return self.start("-m", "gpumem", "run", *arguments, **environment)


# Where the tests were started with interrupts ignored, as in the background of a shell, Python leaves them so.
INTERRUPTED = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
os.kill(os.getpid(), signal.SIGINT)
print('no')
"""


class LikePythonTest(Folder):
    """Programs that use no GPU: output, errors and status are those of Python."""

    def same(self, *arguments, flags=()):
        plain = self.start(*flags, *arguments)
        ours = self.start(*flags, "-m", "gpumem", "run", "--no-summary", *arguments)
        frozen = [line for line in plain.stderr.splitlines() if "<frozen runpy>" in line]
        expected = "".join(f"{line}\n" for line in plain.stderr.splitlines() if line not in frozen)
        self.assertEqual((ours.returncode, ours.stdout, ours.stderr), (plain.returncode, plain.stdout, expected))
        return ours

    def test_what_a_script_sees(self):
        name = self.write("a/look.py", LOOK.replace("import beside", ""))
        self.same(name)
        self.same(name, "-m", "--limit", "x", "--", "-h")
        self.same(self.folder / name)
        (self.folder / "link.py").symlink_to(name)
        self.same("link.py")
        self.same(self.write("look.py", LOOK), "one")

    def test_what_a_module_sees(self):
        self.write("package/__init__.py", "")
        self.write("package/__main__.py", LOOK)
        self.write("package/module.py", LOOK)
        self.same("-m", "package", "one")
        self.same("-m", "package.module", "-x")
        self.same("-mpackage.module", "-m", "y")

    def test_what_a_folder_and_an_archive_see(self):
        self.write("folder/__main__.py", LOOK)
        self.write("folder/beside.py", "print('inside')\n")
        self.same("folder", "one")
        with zipfile.ZipFile(self.folder / "archive.pyz", "w") as archive:
            for name in ("__main__.py", "beside.py"):
                archive.write(self.folder / "folder" / name, name)
        self.same("archive.pyz")

    def test_flags_of_python(self):
        self.write("look.py", LOOK.replace("import beside", "print(sys.flags)"))
        for flags in (["-O"], ["-X", "utf8"], ["-W", "error"], ["-B", "-u"]):
            self.same("look.py", flags=flags)
        if sys.version_info >= (3, 11):
            self.same("look.py", flags=["-P"])

    def test_errors(self):
        for name, text in {
            "raises.py": "def f():\n    raise ValueError('no')\nf()\n",
            "chained.py": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise KeyError('k')\n",
            "syntax.py": "print('a'\nx = = 1\n",
            "imports.py": "import broken\n",
            "broken.py": "import no_such_module\n",
            "hook.py": "import sys\nsys.excepthook = lambda kind, error, tb: print(kind, error, tb.tb_lineno, tb.tb_next)\n1 / 0\n",
            "hook_fails.py": "import sys\ndef hook(*_):\n    1 / 0\nsys.excepthook = hook\nraise KeyError\n",
            "looks.py": "import sys, atexit\natexit.register(lambda: print(sys.last_value, sys.last_traceback.tb_lineno))\n1 / 0\n",
            "late.py": "import atexit\natexit.register(lambda: print('late'))\n1 / 0\n",
            "thread.py": "import threading, time\nthreading.Thread(target=lambda: print('thread', time.sleep(0.2))).start()\nprint('main', flush=True)\nraise SystemExit(3)\n",
        }.items():
            self.write(name, text)
            with self.subTest(name):
                self.same(name)

    def test_the_exit_status_is_the_programs(self):
        for value in ("", "0", "None", "3", "'words'", "256 + 7", "(1, 2)"):
            with self.subTest(value):
                self.same(self.write("exits.py", f"import sys\nsys.exit({value})\n"))
        self.same(self.write("leaves.py", "import os\nos._exit(9)\n"))
        self.same(self.write("killed.py", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"))

    def test_an_interrupt(self):
        done = self.same(self.write("interrupted.py", INTERRUPTED))
        self.assertEqual(done.returncode, -signal.SIGINT)

    def test_classes_of_the_program_are_found_again(self):
        self.same(
            self.write(
                "pickles.py",
                """
                import multiprocessing, pickle
                class Kept:
                    def __init__(self, value):
                        self.value = value
                def twice(kept):
                    return Kept(2 * kept.value)
                if __name__ == "__main__":
                    print(pickle.loads(pickle.dumps(Kept(1))).value)
                    for method in ("spawn", "fork", "forkserver"):
                        with multiprocessing.get_context(method).Pool(1) as pool:
                            print(method, pool.map(twice, [Kept(2)])[0].value)
                """,
            )
        )

    def test_what_cannot_be_started(self):
        done = self.gpumem("no_such_file.py")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"^python -m gpumem run: can't open file '.*/no_such_file\.py': \[Errno 2\] No such file")
        done = self.gpumem("-m", "no_such_module")
        self.assertEqual((done.returncode, done.stderr.splitlines()[0]), (1, "python -m gpumem run: No module named no_such_module"))
        for arguments in (["-m"], ["--limit", "1GiB"], ["--no-such-option", "a.py"], ["--record", "x", "--no-record", "a.py"]):
            done = self.gpumem(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertIn("usage: python -m gpumem run", done.stderr)

    def test_a_wrong_value_is_refused_before_the_program_starts(self):
        self.write("a.py", "print('started')\n")
        for option, value in (("--limit", "lots"), ("--profile", "quick"), ("--conf", "no_such:1"), ("--spill", "x"), ("--record", "none/x")):
            done = self.gpumem(option, value, "a.py")
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn(value.split(":")[0], done.stderr)

    def test_other_programs_go_to_the_command(self):
        for arguments in (["--no-record", "true"], ["--no-record", "--", sys.executable, "-c", "pass"], ["--limit=1GiB", "--no-record", "--", "true"]):
            done = self.gpumem(*arguments)
            self.assertEqual((done.returncode, done.stderr), (0, ""), arguments)
        self.assertEqual(self.gpumem("--no-record", "--", "false").returncode, 1)
        self.assertIn("PROGRAM", self.gpumem("--help").stdout)


@unittest.skipUnless(ON_SIMULATOR, "for the simulator, where a package stands for PyTorch")
@unittest.skipIf(standin.missing(), standin.missing())
class WithLibraryTest(Folder):
    """Programs that import the package that stands for PyTorch."""

    def start(self, *arguments, **environment):
        paths = [standin.torch_folder(), str(standin.FOLDER), os.environ.get("PYTHONPATH", "")]
        return super().start(*arguments, **{"PYTHONPATH": os.pathsep.join(paths), **environment})

    def succeeds(self, done, output=""):
        self.assertEqual((done.returncode, done.stdout), (0, output), done.stderr)
        return done.stderr

    def test_tensors_come_from_gpumem(self):
        self.write("train.py", "import torch\nkept = [torch.empty(1 << 20) for _ in range(3)]\ndel kept[0]\n")
        summary = self.succeeds(self.gpumem("train.py"))
        self.assertRegex(summary, r"(?m)^gpumem: train\.py has ended after \d+\.\d s$")
        self.assertRegex(summary, r"(?m)^    allocated  3\.000 MiB at most$")
        self.assertRegex(summary, r"(?m)^    reserved   4\.000 MiB at most, 1\.333 times as much$")
        self.assertRegex(summary, r"(?m)^    refused    0 of 3 requests$")
        self.assertEqual(self.succeeds(self.gpumem("--no-summary", "train.py")), "")

    def test_the_summary_as_json(self):
        self.write("train.py", "import torch\nkept = torch.empty(1 << 20)\n")
        found = json.loads(self.succeeds(self.gpumem("--json", "--stacks", "train.py", RANK="3")))
        self.assertEqual(found["program"], "train.py, rank 3")
        (device,) = found["devices"]
        self.assertEqual((device["device"], device["allocated_peak_bytes"], device["refusal_count"]), (0, 1 << 20, 0))
        self.assertEqual([holder["name"] for holder in device["holders"]], ["train.py:2"])

    def test_a_program_without_tensors(self):
        self.write("train.py", "print('done')\n")
        self.assertIn("nothing was allocated from gpumem", self.succeeds(self.gpumem("train.py"), "done\n"))
        self.write("train.py", "import torch\nprint('done')\n")
        self.assertIn("nothing was allocated from gpumem", self.succeeds(self.gpumem("train.py"), "done\n"))

    def test_a_program_that_installs_gpumem_itself(self):
        for line in ("import torch, gpumem.torch", "import gpumem.torch, torch", "import gpumem.torch\nimport torch"):
            self.write("train.py", f"{line}\ngpumem.torch.install(hard_limit='64MiB')\nkept = torch.empty(1 << 20)\n"
                       "print(gpumem.torch.memory_pool().status().hard_limit_bytes >> 20)\n"
                       "try:\n    gpumem.torch.install()\nexcept gpumem.Error as error:\n    print(error)\n")
            self.succeeds(self.gpumem("train.py"), "64\ngpumem is installed already; set options in the first call\n")

    def test_options_come_before_the_first_tensor(self):
        self.write("train.py", "import torch, gpumem.torch\nkept = torch.empty(1)\ngpumem.torch.install(hard_limit='64MiB')\n")
        done = self.gpumem("--no-summary", "train.py")
        self.assertEqual(done.returncode, 1)
        self.assertIn("WrongState: a pool exists already, and its options cannot change", done.stderr)

    def test_arrays_come_from_gpumem(self):
        self.write("cupy.py", "import standin\nstandin.load()\n")
        self.write("train.py", "import sys, cupy, gpumem.cupy\ngpumem.cupy.install(hard_limit='64MiB')\n"
                   "kept = sys.modules['cupy_backends.cuda.stream'].allocator(1 << 20)\nprint('done')\n")
        self.assertIn("allocated  1.000 MiB at most", self.succeeds(self.gpumem("train.py"), "done\n"))

    def test_options_reach_the_pool(self):
        self.write("train.py", "import torch, gpumem.torch\nprint(gpumem.torch.memory_pool().status().hard_limit_bytes >> 20)\n")
        self.succeeds(self.gpumem("--limit", "96MiB", "--profile", "tight", "train.py"), "96\n")

    def test_a_recording(self):
        self.write("train.py", "import torch\nkept = torch.empty(1 << 20)\n")
        summary = self.succeeds(self.gpumem("--record", "run-%p.trace", "train.py"))
        # A small segment.
        self.assertRegex(summary, r"(?m)^    natively   2\.000 MiB, 2\.000 times as much, by PyTorch's own allocator")
        (trace,) = self.folder.glob("run-*.trace")
        self.assertIn(f"next: python -m gpumem report {trace}", summary)
        report = self.start("-m", "gpumem", "report", trace)
        self.assertIn("1.000 MiB", self.succeeds(report, report.stdout) + report.stdout)

    def test_peaks_from_before_a_reset_count(self):
        self.write("train.py", "import torch\nkept = torch.empty(5 << 20)\ndel kept\nimport gpumem.torch\n"
                   "gpumem.torch.reset_peak_memory_stats(0)\nkept = torch.empty(1 << 20)\n")
        self.assertIn("allocated  5.000 MiB at most", self.succeeds(self.gpumem("train.py")))

    def test_processes_that_the_program_starts(self):
        self.write("train.py", """
            import multiprocessing, torch
            def work(size):
                kept = torch.empty(size)
                return torch.cuda.allocator is not None
            if __name__ == "__main__":
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    print(pool.map(work, [1 << 20]))
            """)
        environment = self.virtual_environment()
        done = subprocess.run(
            [environment, "-m", "gpumem", "run", "--no-summary", "train.py"], cwd=self.folder, capture_output=True, text=True, timeout=120
        )
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "[True]\n", ""))

    def test_lines_that_hold_memory(self):
        self.write("layers.py", "import torch\ndef forward(size):\n    return torch.empty(size)\n")
        self.write("train.py", """
            import layers, torch
            kept = [layers.forward(8 << 20), torch.empty(2 << 20)]
            torch.backward(4 << 20)
            torch.empty(100 << 20)
            """)
        done = self.gpumem("--stacks", "--limit", "64MiB", "train.py")
        self.assertEqual(done.returncode, 1)
        self.assertIn('train.py", line 5, in <module>', done.stderr)
        self.assertIn("CUDA out of memory. Tried to allocate 100.00 MiB.", done.stderr)
        report, summary = done.stderr[done.stderr.index("CUDA out of memory"):].split("\ngpumem: ")
        for line in ("layers.py:3 forward", "train.py:3", "backward", "train.py:5"):
            self.assertIn(line, report)
        self.assertIn("with gpumem.torch.offload():", report)
        self.assertNotIn("--stacks", report)
        self.assertIn("train.py has ended with MemoryError", summary)
        self.assertRegex(summary, r"(?m)^    refused    1 of 4 requests$")
        self.assertRegex(summary, r"(?m)^      layers\.py:3 forward +8\.000 MiB, and 8\.000 MiB at the end$")

    def test_lines_of_threads(self):
        self.write("train.py", """
            import gpumem.torch, json, threading, torch
            def work(kept):
                for turn in range(2000):
                    kept.append(torch.empty(4096))
                    if turn % 2:
                        kept.pop()
            lists = [[] for _ in range(4)]
            threads = [threading.Thread(target=work, args=(kept,)) for kept in lists]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            (tag,) = json.loads(gpumem.torch.memory_pool(0).status_json())["tags"]
            print(tag["tag"], tag["block_count"])
            """)
        self.succeeds(self.gpumem("--stacks", "--no-summary", "train.py"), "train.py:5 work 4000\n")

    def test_an_error_of_the_library_has_no_frames_of_ours(self):
        self.write("torch.py", "raise ValueError('broken')\n")
        self.write("train.py", "import torch\n")
        ours, plain = self.gpumem("--no-summary", "train.py"), self.start("train.py")
        self.assertEqual((ours.returncode, ours.stderr), (plain.returncode, plain.stderr))

    def test_the_module_keeps_its_loader(self):
        text = "import importlib.util, torch\nprint(type(torch.__loader__).__name__, torch.__spec__.loader is torch.__loader__)\n" \
               "print(importlib.util.find_spec('torch').name, importlib.util.find_spec('cupy'))\n"
        self.write("train.py", text)
        self.succeeds(self.gpumem("--no-summary", "train.py"), "SourceFileLoader True\ntorch None\n")

    # ------------------------------------------------------------------------------------------------------ GPUMEM_INSTALL

    def virtual_environment(self):
        """The Python of an environment in which gpumem is installed."""
        import gpumem

        site = Path(gpumem.__file__).parents[1]
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.folder / "venv"], check=True)
        (packages,) = (self.folder / "venv").glob("lib/python*/site-packages")
        (packages / "a_folders.pth").write_text("\n".join(map(str, (site, standin.torch_folder(), standin.FOLDER))))
        (packages / "gpumem.pth").write_text((site / "gpumem.pth").read_text())
        return self.folder / "venv/bin/python"

    def in_environment(self, *arguments, **environment):
        given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [self.folder / "venv/bin/python", *arguments]
        return subprocess.run(command, cwd=self.folder, env={**given, **environment}, capture_output=True, text=True, timeout=120)

    def test_a_variable_installs(self):
        self.virtual_environment()
        self.write("train.py", "import torch\nkept = torch.empty(1 << 20)\nprint('done')\n")
        self.assertEqual(self.in_environment("train.py").returncode, 1)
        for flags in ([], ["-I"], ["-E"], ["-s"], ["-O"]):
            with self.subTest(flags):
                self.assertEqual(self.succeeds(self.in_environment(*flags, "train.py", GPUMEM_INSTALL="torch"), "done\n"), "")
        summary = self.succeeds(self.in_environment("train.py", GPUMEM_INSTALL="torch,stacks,summary"), "done\n")
        self.assertRegex(summary, r"(?m)^gpumem: process \d+ has ended$")
        self.assertRegex(summary, r"(?m)^      train\.py:2 +1\.000 MiB")

    def test_nothing_is_imported_without_the_library(self):
        self.virtual_environment()
        code = "import sys; print([name for name in sys.modules if 'gpumem' in name])"
        self.succeeds(self.in_environment("-c", code), "[]\n")
        self.succeeds(self.in_environment("-c", code, GPUMEM_INSTALL=""), "[]\n")
        self.succeeds(self.in_environment("-c", code, GPUMEM_INSTALL="torch,summary"), "['_gpumem_start']\n")
        # Without the modules of an environment there is no PyTorch either.
        self.succeeds(self.in_environment("-S", "-c", code, GPUMEM_INSTALL="torch"), "[]\n")

    def test_a_wrong_variable_is_an_error_of_the_import(self):
        self.virtual_environment()
        for value, problem in (("trch", "'trch' is none of its words"), ("stacks", "it names no library"), ("1", "'1' is none of its words")):
            done = self.in_environment("-c", "print(1)\nimport torch", GPUMEM_INSTALL=value)
            self.assertEqual((done.returncode, done.stdout), (1, "1\n"))
            self.assertIn(f"InvalidEnvironment: invalid GPUMEM_INSTALL='{value}': {problem}; set it to torch or cupy", done.stderr)

    def test_a_site_that_imports_the_library_first(self):
        self.virtual_environment()
        (packages,) = (self.folder / "venv").glob("lib/python*/site-packages")
        (packages / "sitecustomize.py").write_text("import torch\n")
        self.write("train.py", "import torch\nkept = torch.empty(1 << 20)\nprint('done')\n")
        self.succeeds(self.in_environment("train.py", GPUMEM_INSTALL="torch"), "done\n")

    def test_run_where_the_variable_is_set(self):
        self.virtual_environment()
        self.write("train.py", "import torch\nkept = torch.empty(1 << 20)\nprint('done')\n")
        done = self.in_environment("-m", "gpumem", "run", "train.py", GPUMEM_INSTALL="torch")
        self.assertIn("allocated  1.000 MiB", self.succeeds(done, "done\n"))

    def test_forked_children_sum_up_nothing(self):
        self.write("train.py", "import os, sys, torch\nif os.fork():\n    os.wait()\n    kept = torch.empty(1 << 20)\nelse:\n    sys.exit(0)\n")
        self.assertEqual(self.succeeds(self.gpumem("train.py")).count("gpumem:"), 1)

    # ------------------------------------------------------------------------------------------------------------ notebooks

    def test_a_notebook(self):
        shell = """
            class Shell:
                def register_magic_function(self, function, kind, name):
                    self.magic = {(kind, name): function}
            shell = Shell()
            import gpumem
            gpumem.load_ipython_extension(shell)
            shell.magic["line", "gpumem"]("")
            import torch
            kept = torch.empty(1 << 20)
            shell.magic["line", "gpumem"]("")
            """
        output = self.start(self.write("notebook.py", shell))
        self.assertEqual((output.returncode, output.stderr), (0, ""))
        lines = output.stdout.splitlines()
        self.assertEqual(lines[0], "gpumem: torch and cupy will allocate from it once they are imported; %gpumem shows what they hold")
        self.assertTrue(lines[1].endswith("nothing is allocated yet"), lines[1])
        self.assertIn("1.000 MiB", "\n".join(lines[2:]))

    def test_a_notebook_that_has_used_the_gpu(self):
        code = "import torch\ntorch.cuda.is_used = True\nimport gpumem\ngpumem.load_ipython_extension(None)\n"
        done = self.start(self.write("notebook.py", code))
        self.assertIn("PyTorch's own allocator has memory already", done.stderr)
        self.assertIn("after a restart of its kernel", done.stderr)


if __name__ == "__main__":
    unittest.main()
