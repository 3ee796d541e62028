"""Every supported version of vLLM has the seams that growpage expects."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from growpage.engine import seams
from growpage.engine.checks import installed_version
from tools.vllm_seams import Source, imports, open_source, parameters, snapshot

DATA = Path(__file__).parents[1] / "data"


def name(version: seams.Version) -> str:
    return ".".join(map(str, version))


def noted(version: seams.Version) -> Any:
    return json.loads((DATA / f"vllm-{name(version)}-seams.json").read_text())


@pytest.fixture(scope="module")
def installed() -> Source:
    import vllm

    return open_source(Path(vllm.__file__).parents[1])


@pytest.mark.parametrize("version", seams.SUPPORTED, ids=name)
def test_every_supported_version_has_what_is_imported(version: seams.Version) -> None:
    found = noted(version)["imports"]
    assert imports() <= set(found), (
        f"new to the snapshot: make seams VLLM={name(version)} WHEEL=..."
    )
    assert all(found[path] for path in imports())


@pytest.mark.parametrize("version", seams.SUPPORTED, ids=name)
def test_every_supported_version_has_what_is_called(version: seams.Version) -> None:
    found = noted(version)["callables"]
    expected = seams.callables(version)
    assert {path: found[path] for path in expected} == {
        path: list(names) for path, names in expected.items()
    }
    for places in (seams.MAKE_ARG_PARSER, seams.CLI_ENV_SETUP):
        assert found[places[version]] is not None


@pytest.mark.parametrize("version", seams.SUPPORTED, ids=name)
def test_every_supported_version_has_what_is_read(version: seams.Version) -> None:
    found = noted(version)["attributes"]
    assert found == {path: sorted(names) for path, names in seams.ATTRIBUTES.items()}


def test_the_snapshot_of_the_installed_version_is_true(installed: Source) -> None:
    assert snapshot(installed) == noted(installed_version())


def test_source_and_import_agree(installed: Source) -> None:
    for path in seams.callables(installed_version()):
        node = installed.find(path)
        assert node is not None, path
        assert parameters(node) == list(inspect.signature(seams.resolve(path)).parameters), path


SOURCE = {
    "vllm/__init__.py": "from .base import Base as Renamed",
    "vllm/base.py": """
FLAG: bool = True
class Base:
    annotated: int
    def __init__(self, a, *, b=1):
        self.assigned, self.other = a, b
        self.register_buffer("buffer", a)
    @classmethod
    def make(cls, c): ...
    @staticmethod
    def free(d): ...
""",
    "vllm/child.py": """
from vllm import Renamed
class Child(Renamed):
    def __init__(self, a): ...
    def own(self, x, *rest, y, **more): ...
""",
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("vllm.child:Child.__init__", ["self", "a"]),
        ("vllm.child:Child.own", ["self", "x", "rest", "y", "more"]),
        ("vllm.child:Child.make", ["c"]),
        ("vllm.child:Child.free", ["d"]),
        ("vllm.base:Base.__init__", ["self", "a", "b"]),
    ],
)
def test_parameters_are_read_through_imports_and_bases(path: str, expected: list[str]) -> None:
    node = Source(SOURCE.get).find(path)
    assert node is not None
    assert parameters(node) == expected


@pytest.mark.parametrize("path", ["vllm:Renamed", "vllm:child", "vllm.base:Base", "vllm.base:FLAG"])
def test_names_that_can_be_imported_are_found(path: str) -> None:
    assert Source(SOURCE.get).exists(path)


def test_what_is_not_there_is_not_found() -> None:
    source = Source(SOURCE.get)
    assert not source.exists("vllm.base:Gone")
    assert not source.exists("vllm.gone:Base")
    assert source.find("vllm.child:Child.gone") is None
    assert source.find("vllm.gone:Child") is None
    assert source.attributes("vllm.child:Gone") == set()


def test_attributes_are_read_through_bases() -> None:
    expected = {"annotated", "assigned", "other", "buffer", "make", "free", "own", "__init__"}
    assert Source(SOURCE.get).attributes("vllm.child:Child") == expected
