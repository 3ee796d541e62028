"""Tests that need Triton's interpreter: ``tests/kernels/test_interpreter.py`` runs them."""

from __future__ import annotations

import os

from hypothesis import settings

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]

settings.register_profile("growpage", deadline=None, derandomize=True, database=None)
settings.load_profile("growpage")
