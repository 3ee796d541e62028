"""The dashboard in the repository is what its code makes, and Grafana's schema has all of it."""

from __future__ import annotations

import importlib.util
import json
import re
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.monitoring.queries import DASHBOARD

CODE = DASHBOARD.with_name("dashboard.py")


@pytest.fixture(scope="module")
def content() -> Any:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def panels(content: Any) -> list[Any]:
    return [panel for panel in content["panels"] if panel["type"] != "row"]


def test_the_file_is_what_the_code_makes() -> None:
    spec = importlib.util.spec_from_file_location("growpage_dashboard", CODE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.text() == DASHBOARD.read_text(encoding="utf-8"), f"remake it: python {CODE.name}"


def test_grafana_s_schema_reads_all_of_it(content: Any) -> None:
    register_default_plugins()
    read = json.loads(json.dumps(Dashboard.from_json(content), cls=JSONEncoder))
    for panel in read["panels"]:
        if panel["type"] == "heatmap":  # it writes an empty one for none
            assert panel["fieldConfig"]["defaults"].pop("custom") == {}
    assert read == content


def test_panels_fill_the_grid_without_gap_or_overlap(content: Any) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in content["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    width, height = 24, max(y for _, y in taken) + 1
    assert len(taken) == width * height


def test_panels_and_their_queries_can_be_told_apart(panels: list[Any]) -> None:
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        references = [target["refId"] for target in panel["targets"]]
        assert references == [chr(ord("A") + place) for place in range(len(references))]


def test_every_panel_says_what_it_shows(panels: list[Any]) -> None:
    assert [panel["title"] for panel in panels if not panel["description"].endswith(".")] == []
    for panel in panels:
        if panel["type"] != "table":
            assert panel["fieldConfig"]["defaults"].get("unit") or panel["options"]["yAxis"]["unit"]


def test_the_variables_mean_every_query(content: Any, panels: list[Any]) -> None:
    names = {variable["name"] for variable in content["templating"]["list"]}
    assert names == {"datasource", "namespace", "model", "instance", "engine"}
    used = set()
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            used |= set(re.findall(r"\$([a-z]+)", target["expr"]))
            if not target["expr"].startswith("ALERTS"):
                assert 'model_name=~"$model"' in target["expr"], panel["title"]
    assert names - {"datasource"} <= used
