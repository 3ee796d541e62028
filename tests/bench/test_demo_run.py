"""``growpage demo`` on the real engine, small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine


def test_a_small_demo(tmp_path: Path, tiny_worded_model: Path) -> None:
    out = tmp_path / "demo-out"
    result = subprocess.run(
        [
            *(sys.executable, "-m", "growpage", "demo", "--out", str(out)),
            *("--model", str(tiny_worded_model), "--requests", "8", "--max-new-tokens", "160"),
            *("--policies", "full,fixed"),  # each takes an engine; the others differ by settings
        ],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "ratio to full" in result.stdout
    policies = json.loads((out / "report.json").read_text())["policies"]
    assert list(policies) == ["full", "fixed"]
    for name, figures in policies.items():
        assert figures["pages_leaked"] == 0
        assert figures["tokens_per_s"] > 0
        assert (figures["compressions"] > 0) == (name != "full")
    assert policies["full"]["ratio_to_full"] == 1
    assert policies["fixed"]["preemptions"] == 0
    assert policies["fixed"]["mean_pages"] < policies["full"]["mean_pages"]
    assert "http" not in (out / "report.html").read_text().replace("http://www.w3.org", "")
    for figure in ("pages-by-request.png", "pool-occupancy.png"):
        assert (out / figure).stat().st_size > 10_000
