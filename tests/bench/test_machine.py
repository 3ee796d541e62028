"""What is said of the processor, and what a model is served in on it."""

from pathlib import Path

import pytest

from growpage import processor
from growpage.bench import machine

X86 = "model name\t: A processor\nflags\t\t: fpu sse2 {flags}\n"


@pytest.mark.parametrize(
    ("text", "unit", "dtype"),
    [
        (X86.format(flags="avx2 avx512f avx512_bf16 amx_bf16 amx_tile"), "AMX", "auto"),
        (X86.format(flags="avx2 avx512f"), "AVX-512", "auto"),
        (X86.format(flags="avx avx2 f16c"), "AVX2", "float32"),
        ("Features\t: fp asimd bf16\n", "NEON", "auto"),
        ("processor\t: 0\n", None, "auto"),
        (None, None, "auto"),
    ],
)
def test_the_fastest_vector_unit_decides_the_dtype(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    text: str | None,
    unit: str | None,
    dtype: str,
) -> None:
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(processor, "CPU_INFO", file)
    assert machine.vector_unit() == unit
    assert machine.fast_dtype() == dtype
    assert machine.describe_machine()["vectors"] == (unit or "unknown")
