"""The autoscaler is installed without the engine."""

from __future__ import annotations

import subprocess
import sys

WITHOUT = ("torch", "vllm", "transformers")


def test_neither_torch_nor_vllm_is_imported() -> None:
    modules = ("kube.cluster", "kube.leader", "kube.events", "keda.scaler")
    imports = ", ".join(f"growpage.fleet.{module}" for module in modules)
    check = f"import sys, {imports}; print([m for m in {WITHOUT} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"
