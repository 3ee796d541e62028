"""What is done with Helm, in a process of its own: see the fixture ``with_helm``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.render_manifests import CHART, NAMESPACE, generated_files


def lint(values: Mapping[str, Any], *, chart: Path = CHART) -> list[str]:
    """Warnings and errors of ``helm lint --strict``; hints are none."""
    from helm_python import lint as lint_chart

    report = lint_chart(chart, dict(values), strict=True, namespace=NAMESPACE)
    messages: list[str] = [each["error"] for each in report["messages"] if each["severity"] > 1]
    errors: list[str] = report["errors"]
    return messages + errors


def generated() -> dict[Path, str]:
    """What ``tools/render_manifests.py`` would write."""
    return dict(generated_files())


def refusal(values: Mapping[str, Any], *, chart: Path = CHART) -> str | None:
    """Why Helm does not render ``values``; None if it does."""
    from helm_python import HelmError

    from tools.render_manifests import render

    try:
        render(values, chart=chart)
    except HelmError as error:
        return str(error)
    return None
