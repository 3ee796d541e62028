"""The rules that docs/autoscaler-kubernetes.md tells operators to grant."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

DOCUMENT = Path(__file__).parents[3] / "docs/autoscaler-kubernetes.md"


def documented_rules(*parts: str) -> list[dict[str, Any]]:
    """Those under these marks of the document; under all of them if none is named."""
    blocks = re.findall(r"<!-- rbac: (\w+) -->\n```yaml\n(.*?)```", DOCUMENT.read_text(), re.S)
    assert {name for name, _ in blocks} >= {*parts} and blocks
    return [
        rule for name, text in blocks if not parts or name in parts for rule in yaml.safe_load(text)
    ]
