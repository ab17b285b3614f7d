"""One native module at a time, built from changed sources.

CMake is set up once, in a folder of its own and without optimisation beyond the first level. nanobind is compiled with the first
module, so each further one costs the few seconds of its own source.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from threading import Lock

from tools.document import ROOT

#: Enough to test what a module does; the level of the ordinary build takes several times as long to compile.
LEVEL = "-O1"


class NativeModules:
    """Builds native modules in a folder, which holds a copy of their sources. Needs CMake and nanobind."""

    def __init__(self, folder: Path) -> None:
        self._sources, self._built = folder / "sources", folder / "built"
        self._lock = Lock()

    def built(self, module: str, path: str, text: str, to: Path) -> None:
        """Build a module with `text` as the content of the source file `path`, and put it into the folder `to` as a package's tests
        load it. Raises RuntimeError where it does not compile."""
        with self._lock:
            self._prepare()
            source = self._sources / path
            original = source.read_text(encoding="utf-8")
            try:
                source.write_text(text, encoding="utf-8")
                _run("cmake", "--build", str(self._built), "--target", f"_{module}")
            finally:
                source.write_text(original, encoding="utf-8")
            for old in to.glob(f"_{module}.*.so"):
                old.unlink()
            (found,) = self._built.glob(f"_{module}.*.so")
            shutil.copy(found, to)

    def _prepare(self) -> None:
        """Copy the sources and set CMake up, unless that was done before."""
        if self._built.exists():
            return
        shutil.copytree(ROOT / "native", self._sources / "native")
        shutil.copy(ROOT / "CMakeLists.txt", self._sources)
        options = {"CMAKE_BUILD_TYPE": "Debug", "CMAKE_CXX_FLAGS_DEBUG": LEVEL, "Python_EXECUTABLE": sys.executable}
        _run("cmake", "-S", str(self._sources), "-B", str(self._built), *(f"-D{name}={value}" for name, value in options.items()))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
