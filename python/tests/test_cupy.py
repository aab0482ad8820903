"""CuPy on a GPU."""

import os
import subprocess
import sys
import unittest

try:
    import cupy

    HAS_GPU = cupy.cuda.runtime.getDeviceCount() > 0
except Exception:
    HAS_GPU = False


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", "import cupy, gpumem, gpumem.cupy\n" + code],
        env=os.environ, capture_output=True, text=True, timeout=300,
    )
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


@unittest.skipUnless(HAS_GPU, "CuPy is not installed, or has no GPU here")
class ProgramsTest(unittest.TestCase):
    def test_arrays_come_from_the_pool(self):
        run(
            "gpumem.cupy.install()\n"
            "x = cupy.arange(1 << 20, dtype=cupy.float64)\n"
            "assert gpumem.cupy.memory_pool().status().in_use_bytes >= 8 << 20\n"
            "assert float((x * 2).sum()) == (1 << 20) * ((1 << 20) - 1)\n"
            "del x\n"
            "assert gpumem.cupy.memory_pool().status().in_use_bytes == 0\n"
        )

    def test_lack_of_memory_has_the_report(self):
        out = run(
            "gpumem.cupy.install(hard_limit=64 << 20)\n"
            "try:\n    cupy.zeros(1 << 30, dtype=cupy.uint8)\n"
            "except MemoryError as error:\n    print(error)\n"
        )
        unittest.TestCase().assertIn("the limit of 64.000 MiB refused 1.000 GiB", out)

    def test_streams_of_the_program(self):
        run(
            "gpumem.cupy.install()\n"
            "for turn in range(50):\n"
            "    with cupy.cuda.Stream(non_blocking=True) as stream:\n"
            "        x = cupy.full(1 << 20, turn, dtype=cupy.int32)\n"
            "        y = (x + 1).sum()\n"
            "        stream.synchronize()\n"
            "        assert int(y) == (turn + 1) << 20\n"
        )


if __name__ == "__main__":
    unittest.main()
