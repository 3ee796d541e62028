"""Runs the kernels' tests under Triton's interpreter, and sees that nothing else loads Triton."""

from __future__ import annotations

import json
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


def test_gpu_check_under_the_interpreter(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    checked = python("-m", "growpage.bench.gpu_check", "--interpret", "--out", str(out))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    kernels = json.loads(out.read_text())["kernels"]
    assert len(kernels) == 7 and all(each["matches"] for each in kernels)
    assert "7 of 7 match their reference" in checked.stdout


WRONG = """
import runpy, sys
from growpage.kernels import reference
exact = reference.working_sets
reference.working_sets = lambda *arguments: tuple(each + 1 for each in exact(*arguments))
sys.argv = ["gpu_check", "--interpret"]
runpy.run_module("growpage.bench.gpu_check", run_name="__main__")
"""


def test_gpu_check_sees_a_mismatch() -> None:
    checked = python("-c", WRONG)
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert "working_sets                 tiny               40 tokens  MISMATCH" in checked.stdout
    assert "6 of 7 match their reference" in checked.stdout


def test_gpu_check_without_a_gpu() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "growpage.bench.gpu_check"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert checked.returncode == 2
    assert checked.stderr.startswith("no NVIDIA GPU that this torch can use was found")
    assert checked.stderr.count("\n") == 1
