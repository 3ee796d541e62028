"""The reference of metrics is the catalogue's, and every alert has a runbook that helps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from growpage.cli.flags import budget_parser
from growpage.cli.serve import add_operations
from growpage.telemetry.catalogue import METRICS
from tests.monitoring.queries import ROOT, load_rules
from tools.metrics_reference import PAGE, page

RUNBOOKS = ROOT / "docs" / "runbooks"
ALERTS = {rule["alert"]: rule for rule in load_rules() if "alert" in rule}
PAGES = [PAGE, *sorted(RUNBOOKS.glob("*.md"))]


def test_the_reference_is_what_the_catalogue_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "remake it: python tools/metrics_reference.py"
    assert all(f"| `{metric.name}" in text for metric in METRICS)


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="has 0 parts between"):
        page("# Monitoring\n")


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_runbook(alert: str) -> None:
    url = ALERTS[alert]["annotations"]["runbook_url"]
    runbook = RUNBOOKS / url.rpartition("/")[2]
    assert url.endswith(f"/docs/runbooks/{runbook.name}")
    text = runbook.read_text(encoding="utf-8")
    assert text.startswith(f"# {alert}\n")
    headings = re.findall(r"^## (.*)$", text, re.M)
    assert headings == ["Meaning", "Impact", "Check", "Mend"]
    assert "```promql" in text.partition("## Check")[2].partition("## Mend")[0]
    for index in (PAGE, RUNBOOKS / "README.md"):
        assert alert in index.read_text(encoding="utf-8"), f"{index.name} does not list it"


def test_every_runbook_is_for_an_alert() -> None:
    named = {rule["annotations"]["runbook_url"].rpartition("/")[2] for rule in ALERTS.values()}
    assert {page.name for page in RUNBOOKS.glob("*.md")} == {*named, "README.md"}


def anchor(title: str) -> str:
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            file, _, part = target.partition("#")
            there = (path.parent / file).resolve() if file else path
            assert there.exists(), f"{path.name}: {target}"
            if part:
                titles = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.M)
                assert part in {anchor(title) for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_flags_exist(path: Path) -> None:
    parser = budget_parser("", "")
    add_operations(parser)
    named = set(re.findall(r"--growpage-[a-z-]+", path.read_text(encoding="utf-8")))
    assert named <= set(parser.format_help().replace(",", " ").split())
