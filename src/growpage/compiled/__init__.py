"""Loops in C++, compiled on the machine that runs them, once.

vLLM's CPU engine needs a C++ compiler itself unless it runs eagerly. Without one, the torch code
that other devices use does the same work, some times slower. Not numba, which vLLM brings: once it
is loaded, vLLM 0.32 cannot start another CPU engine in the same process.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from growpage.cache_folder import cache_folder
from growpage.processor import cpu_flags

logger = logging.getLogger(f"vllm.{__name__}")

SOURCE = Path(__file__).with_name("loops.cpp")
HEADERS = sorted(SOURCE.parent.glob("*.h"))
FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++20",
    "-fopenmp-simd",
    "-mprefer-vector-width=512",
    "-shared",
    "-fPIC",
)
TIMEOUT_S = 120


class Loops:
    """The functions of ``loops.cpp``, called with tensors, numbers, and nothing else.

    A tensor must be contiguous, on the CPU, and of the type that the function takes. Python's lock
    is released meanwhile.
    """

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self.tiled_pages = self._may_use_tiles()
        """Whether there are those for pages in the layout of the processor's matrix unit."""

    def __call__(self, name: str, *arguments: Tensor | float) -> None:
        """Call the function ``name``."""
        getattr(self._library, name)(*map(_as_c, arguments))

    def _may_use_tiles(self) -> bool:
        try:
            return bool(self._library.allow_tiles() == 0)
        except AttributeError:  # compiled for a processor without
            return False


def _as_c(argument: Tensor | float) -> Any:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_double(argument) if isinstance(argument, float) else ctypes.c_int64(argument)


@cache
def loops() -> Loops | None:
    """The compiled loops; none, and a line in the log, where they cannot be compiled.

    The first call in a process takes a second or two unless another process has compiled them.
    """
    try:
        return Loops(_library())
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or error
        logger.warning(
            "growpage: the C++ loops cannot be compiled, and decisions take some times longer; "
            "install g++ to have them: %s",
            str(output).strip(),
        )
        return None


def _library() -> Path:
    """The compiled file, made if there is none for this source, compiler, and processor."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise RuntimeError("there is no g++")
    texts = [path.read_text() for path in (SOURCE, *HEADERS)]
    parts = (texts, compiler, FLAGS, platform.machine(), _instructions())
    name = hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()
    library = cache_folder() / f"loops-{name}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder, library.name)
            command = (compiler, *FLAGS, str(SOURCE), "-o", str(made))
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
            made.replace(library)  # at once: others may be compiling the same
    return library


def _instructions() -> str:
    """What ``-march=native`` depends on."""
    flags = cpu_flags()
    return platform.processor() if flags is None else flags
