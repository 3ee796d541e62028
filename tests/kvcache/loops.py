"""What tests of compiled loops need of the machine."""

from __future__ import annotations

import pytest

from growpage.compiled import loops

compiled = loops()
needs_compiler = pytest.mark.skipif(compiled is None, reason="there is no compiler")
needs_tiles = pytest.mark.skipif(
    compiled is None or not compiled.tiled_pages, reason="this processor has no matrix unit"
)
amx = pytest.param("amx", marks=needs_tiles)
