"""``growpage doctor`` on this machine, and on one that something is wrong with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def doctor(**environment: str) -> tuple[int, dict[str, Any]]:
    result = subprocess.run(
        [sys.executable, "-m", "growpage", "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **environment},
    )
    report = json.loads(result.stdout)
    return result.returncode, {finding["name"]: finding for finding in report["findings"]}


def test_a_machine_that_can_run_growpage() -> None:
    status, findings = doctor()
    assert status == 0
    assert {f["status"] for f in findings.values()} <= {"ok", "warning"}
    assert "0.32.0" in findings["vllm"]["detail"]
    assert findings["model runner"]["detail"] == "V1"
    assert "float32 head 64: vec" in findings["page layout"]["detail"]
    assert all(f["remedy"] for f in findings.values() if f["status"] == "warning")


def test_a_plugin_that_vllm_is_told_to_leave_out_and_a_runner_that_is_not_supported() -> None:
    status, findings = doctor(VLLM_PLUGINS="other", VLLM_USE_V2_MODEL_RUNNER="1")
    assert status == 1
    assert findings["plugin"]["status"] == "failure"
    assert findings["plugin"]["remedy"] == "export VLLM_PLUGINS=other,growpage"
    assert findings["model runner"]["remedy"] == "export VLLM_USE_V2_MODEL_RUNNER=0"
