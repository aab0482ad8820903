"""Packs the libraries that `cargo xtask wheel` has put into gpumem/lib: they serve every version of Python."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.dist import Distribution

LIBRARIES = ("libgpumem.so.0", "libgpumem_python.so", "libgpumem_torch.so", "libgpumem_cupy.so")


class WithLibraries(Distribution):
    def has_ext_modules(self):
        return True


class AnyPython(bdist_wheel):
    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


class WithStart(build_py):
    """Puts the file that Python reads when it starts beside the package."""

    def run(self):
        super().run()
        self.copy_file("gpumem.pth", str(Path(self.build_lib) / "gpumem.pth"))


for library in LIBRARIES:
    if not (Path(__file__).parent / "gpumem/lib" / library).exists():
        raise SystemExit(f"gpumem/lib/{library} is missing; run `cargo xtask wheel` instead, which builds the libraries first")

setup(distclass=WithLibraries, cmdclass={"bdist_wheel": AnyPython, "build_py": WithStart})
