"""The autoscaler installs alone: it needs neither vLLM nor torch, nor anything else but its own."""

from __future__ import annotations

import subprocess
import sys

BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "vllm", "numpy", "transformers", "matplotlib"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
"""

EVERY_MODULE = """
import importlib, pkgutil, growpage.fleet
for module in pkgutil.walk_packages(growpage.fleet.__path__, growpage.fleet.__name__ + "."):
    if not module.name.endswith(".figures"):
        importlib.import_module(module.name)
"""

COMMAND = """
import sys
sys.argv = ["growpage", "autoscale", "--once", "--prometheus-url", "http://127.0.0.1:1"]
from growpage.cli.app import main
main()
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_every_module_loads_without_vllm_and_torch() -> None:
    done = run(EVERY_MODULE)
    assert done.returncode == 0, done.stderr


def test_the_command_runs_without_vllm_and_torch() -> None:
    done = run(COMMAND)
    assert done.returncode == 4, done.stderr
    assert "cannot reach Prometheus at http://127.0.0.1:1" in done.stderr
