"""What the system says of the processor."""

from __future__ import annotations

from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def cpu_info(*names: str) -> str | None:
    """What Linux reports of the first processor under one of these names; none if nothing."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in names:
            return value.strip()
    return None


def cpu_flags() -> str | None:
    """What its instructions are, as x86 and as ARM call it; none if that is not known."""
    return cpu_info("flags", "Features")
