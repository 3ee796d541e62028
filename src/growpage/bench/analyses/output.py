"""What an analysis leaves behind: a report as JSON, and its figure beside it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from growpage.bench.look import to_png
from growpage.bench.replay import Provenance


def write(report: Mapping[str, Any], figure: Figure, file: Path) -> Path:
    """Write the report to ``file``, and the figure next to it; returns the figure's file.

    The command, the date, the machine and the versions are added to the report.
    """
    content = {
        "command": shlex.join(["growpage", *sys.argv[1:]]),
        **Provenance.here().model_dump(),
        **report,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    picture = file.with_suffix(".png")
    picture.write_bytes(to_png(figure))
    return picture
