"""Where growpage keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/growpage``, or ``~/.cache/growpage``.

    A relative ``XDG_CACHE_HOME`` is ignored, as its specification says.

    Raises:
        RuntimeError: it is not set, and this user has no home folder.
    """
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():
        return xdg / "growpage"
    return Path.home() / ".cache" / "growpage"
