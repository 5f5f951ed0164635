"""The native kernel, built where a C++ compiler is found: one source compiled for each instruction set it may meet."""

from __future__ import annotations

import hashlib
import platform
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNEL = Path("src/adapos/kernels/cpu")
COMMON = [
    "-std=c++20",
    "-O2",
    "-ftree-vectorize",
    "-fvect-cost-model=dynamic",
    "-ffp-contract=fast",
    "-fvisibility=hidden",
]
# the name of a target, how many floats its vectors hold, and what tells the compiler
TARGETS = [("generic", 4, [])]
if platform.machine().lower() in ("x86_64", "amd64"):
    TARGETS += [("avx2", 8, ["-march=x86-64-v3"]), ("avx512", 16, ["-march=x86-64-v4", "-mprefer-vector-width=512"])]


class BuildNative(build_ext):
    """Without a compiler adapos runs on torch alone, and says why where somebody asks for the kernel."""

    why: str | None = None

    def build_extension(self, ext: Extension) -> None:
        built = Path(self.get_ext_fullpath(ext.name))
        reason = built.parent / "_native.txt"
        built.parent.mkdir(parents=True, exist_ok=True)
        for old in (built, reason):
            old.unlink(missing_ok=True)
        try:
            self._compile(built)
        except Exception as problem:
            self.why = self._why()
            reason.write_text(self.why + "\n")
            self.warn(f"the native kernel was not built: {self.why} ({problem})")

    def copy_extensions_to_source(self) -> None:
        """Of an editable install."""
        for old in KERNEL.glob("_native.*"):
            old.unlink()
        super().copy_extensions_to_source()
        if self.why is not None:
            (KERNEL / "_native.txt").write_text(self.why + "\n")

    def _compile(self, built: Path) -> None:
        objects: list[str] = []
        for name, lanes, flags in TARGETS:
            objects += self.compiler.compile(
                [str(KERNEL / "attention.cpp")],
                output_dir=str(Path(self.build_temp) / name),
                macros=[("TARGET", name), ("LANES", str(lanes))],
                extra_postargs=[*COMMON, *flags],
                depends=[str(path) for path in KERNEL.glob("*.h")],
            )
        objects += self.compiler.compile(
            [str(KERNEL / "dispatch.cpp")],
            output_dir=self.build_temp,
            macros=[("SOURCES", f'"{sources()}"'), *((f"WITH_{name.upper()}", None) for name, _, _ in TARGETS)],
            extra_postargs=COMMON,
            depends=[str(path) for path in KERNEL.glob("*.h")],
        )
        self.compiler.link_shared_object(objects, str(built), target_lang="c++")

    def _why(self) -> str:
        command = (getattr(self.compiler, "compiler_so_cxx", None) or getattr(self.compiler, "compiler_so", ["c++"]))[0]
        if shutil.which(command) is None:
            return "no C++ compiler was found when adapos was installed"
        return f"{command} could not compile it when adapos was installed; `pip install -v` shows its words"


def sources() -> str:
    """A mark of the sources, as library.py makes it."""
    digest = hashlib.sha256()
    for path in sorted([*KERNEL.glob("*.h"), *KERNEL.glob("*.cpp")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


setup(
    ext_modules=[Extension("adapos.kernels.cpu._native", [str(KERNEL / "attention.cpp")], optional=True)],
    cmdclass={"build_ext": BuildNative},
)
