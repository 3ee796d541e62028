"""The container files: what can be said of them without building them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.deploy.manifests import Manifest, name, of_kind, pod_spec
from tools.render_manifests import ROOT

FOLDER = ROOT / "deploy/containers"
FILES = sorted(FOLDER.glob("*.Containerfile"))


def instructions(file: Path) -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [
        (word, " ".join(rest.split())) for word, _, rest in (line.partition(" ") for line in lines)
    ]


def stages(file: Path) -> list[list[tuple[str, str]]]:
    """The instructions of each stage, its FROM first."""
    found: list[list[tuple[str, str]]] = []
    for instruction in instructions(file):
        if instruction[0] == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


def shipped(file: Path) -> list[dict[str, str]]:
    """The stages that are images."""
    return [dict(stage) for stage in stages(file) if any(each[0] == "ENTRYPOINT" for each in stage)]


def test_both_images_are_there() -> None:
    assert [file.name for file in FILES] == ["autoscaler.Containerfile", "server.Containerfile"]
    assert [len(shipped(file)) for file in FILES] == [1, 2]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_runs_as_the_charts_user(file: Path, rendered: dict[str, list[Manifest]]) -> None:
    users = {
        f"{security['runAsUser']}:{security['runAsGroup']}"
        for each in of_kind(rendered["keda"], "Deployment")
        for security in (pod_spec(each)["securityContext"],)
    }
    for image in shipped(file):
        assert {image["USER"]} == users


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_starts_what_the_chart_starts(file: Path, rendered: dict[str, list[Manifest]]) -> None:
    (pod,) = (
        pod_spec(each)
        for each in of_kind(rendered["keda-external"], "Deployment")
        if name(each) == f"growpage-{file.stem}"
    )
    container = pod["containers"][0]
    ports = {str(port["containerPort"]) for port in container["ports"]}
    for image in shipped(file):
        assert image["ENTRYPOINT"] == '["growpage"]'
        assert container["command"] == ["growpage"]
        assert image["CMD"].startswith(f'["{container["args"][0]}"')
        assert set(image["EXPOSE"].split()) == ports


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_base_images_have_a_version(file: Path) -> None:
    defaults = [value for word, value in instructions(file) if word == "ARG"]
    assert defaults
    for default in defaults:
        assert re.search(r"=docker\.io/[\w./-]+:[\w.-]*\d[\w.-]*$", default), default
    for stage in stages(file):
        assert re.match(r"\$\{\w+_IMAGE\}", stage[0][1])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_is_copied_is_there_and_not_ignored(file: Path) -> None:
    ignore = file.with_name(file.name + ".dockerignore").read_text(encoding="utf-8").split()
    assert ignore[0] == "*"
    for word, value in instructions(file):
        if word == "COPY" and not value.startswith("--from="):
            for source in value.split()[:-1]:
                path = source.removeprefix("./")
                assert (ROOT / path).exists()
                assert f"!{path}" in ignore
