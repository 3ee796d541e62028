"""Helm for the tests, and what it makes of the documented values."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import Manifest, documents
from tools.render_manifests import DOCUMENTATION, documented_values, render

Run = Callable[..., Any]


@pytest.fixture(scope="session")
def with_helm() -> Iterator[Run]:
    """Call a function in another process: Helm brings Go's runtime, and engines run in this one."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        yield lambda function, *args, **options: process.submit(function, *args, **options).result(
            timeout=60
        )


@pytest.fixture(scope="session")
def values() -> dict[str, dict[str, Any]]:
    """The documented combinations, by name."""
    return documented_values(DOCUMENTATION.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def rendered(with_helm: Run, values: dict[str, dict[str, Any]]) -> dict[str, list[Manifest]]:
    """The manifests of each documented combination."""
    return {name: documents(with_helm(render, given)) for name, given in values.items()}


@pytest.fixture(scope="session")
def kustomize() -> list[str]:
    """The command that builds a kustomization."""
    unpacked = Path(sys.prefix) / "kubectl/kubectl"
    if kubectl := (unpacked if unpacked.is_file() else shutil.which("kubectl")):
        return [str(kubectl), "kustomize"]
    if alone := shutil.which("kustomize"):
        return [alone, "build"]
    pytest.fail(
        "neither kubectl nor kustomize is here to build deploy/kustomize: install one of them"
    )
