"""The core needs no vLLM, and `import growpage` not even torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

import growpage

ALL_OF_THE_CORE = """
import importlib, pkgutil, growpage.budget, growpage.kvcache
for package in (growpage.budget, growpage.kvcache):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
"""


def loads(code: str, module: str) -> bool:
    """Whether a fresh interpreter that runs ``code`` loads ``module``."""
    found = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print({module!r} in sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return {"True": True, "False": False}[found.stdout.split()[-1]]


@pytest.mark.parametrize("module", ["torch", "vllm"])
def test_importing_growpage_is_light(module: str) -> None:
    assert not loads(f"import growpage; growpage.{growpage.__all__[0]}", module)


def test_the_core_never_imports_vllm() -> None:
    assert not loads(ALL_OF_THE_CORE, "vllm")
