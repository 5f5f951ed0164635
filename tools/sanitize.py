"""The tests of the native kernel under AddressSanitizer and UBSan, for vectors of 4, 8 and 16 floats.

Each width is a library of its own, whose one target any processor may run: compilers lower vectors that it lacks.
Scratch memory is filled with NaN. Arguments go to pytest: `python tools/sanitize.py -k fork`.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

from adapos.kernels.cpu.library import sources

ROOT = Path(__file__).parents[1]
KERNEL, BUILT = ROOT / "src/adapos/kernels/cpu", ROOT / "build/sanitize"
COMPILER = os.environ.get("CXX", "g++")
FLAGS = [
    *("-std=c++20", "-O1", "-g", "-fPIC", "-shared", "-ffp-contract=fast", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-DPOISON", "-DTARGET=generic"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-psabi"),
    *(["-march=x86-64-v3"] if platform.machine() in ("x86_64", "AMD64") else []),
]


def built(lanes: int) -> Path:
    library = BUILT / f"native{lanes}.so"
    files = [str(KERNEL / name) for name in ("attention.cpp", "dispatch.cpp")]
    subprocess.run(
        [COMPILER, *FLAGS, f"-DLANES={lanes}", f'-DSOURCES="{sources()}"', *files, "-o", str(library)], check=True
    )
    return library


def runtime(name: str) -> str:
    found = subprocess.run([COMPILER, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def main() -> int:
    BUILT.mkdir(parents=True, exist_ok=True)
    # before Python's own libraries; libstdc++ too, or exceptions of torch's would find no way out of libasan
    settings = {
        "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libstdc++.so')}",
        # Python frees little at its end
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    tests = [sys.executable, "-m", "pytest", "-m", "not slow", "tests/contract/test_native.py", *sys.argv[1:]]
    failed = []
    for lanes in (4, 8, 16):
        library = built(lanes)
        print(f"{lanes} floats a vector: {library.relative_to(ROOT)}", flush=True)
        if subprocess.run(
            tests, env=os.environ | settings | {"ADAPOS_NATIVE_LIBRARY": str(library)}, cwd=ROOT
        ).returncode:
            failed.append(str(lanes))
    if failed:
        print(f"vectors of {', '.join(failed)} floats fail", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
