"""Runs the tests of Model Runner V2, which the CPU build has only under Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
TESTS = Path(__file__).parent / "v2"


def test_model_runner_v2() -> None:
    """In a process of their own: vLLM and Triton read these variables when they are imported."""
    path = os.pathsep.join(filter(None, (str(TESTS / "triton_cpu"), os.environ.get("PYTHONPATH"))))
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "TRITON_INTERPRET": "1",
            "VLLM_USE_V2_MODEL_RUNNER": "1",
        },
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert tests.returncode == 0, tests.stdout[-8000:] + tests.stderr[-2000:]
    print(tests.stdout)
