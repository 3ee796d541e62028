"""Runs the kernels' tests under Triton's interpreter, and sees that nothing else loads Triton."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = Path(__file__).parent / "interpreted"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_kernels() -> None:
    """In a process of their own: Triton reads the variable when it is imported."""
    tests = python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS))
    assert tests.returncode == 0, tests.stdout[-8000:] + tests.stderr[-2000:]
    print(tests.stdout)


CORE = """
import importlib, pkgutil, sys, growpage.budget, growpage.kvcache, growpage.kernels
assert "torch" not in sys.modules, "importing growpage.kernels alone imports torch"
for package in (growpage.budget, growpage.kvcache):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
loaded = [name for name in sys.modules if name.startswith("growpage.kernels.")]
assert not loaded, loaded
"""


def test_the_core_needs_no_kernels() -> None:
    checked = python("-c", CORE)
    assert checked.returncode == 0, checked.stderr
