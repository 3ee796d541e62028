import base64
import dataclasses
import json
import re
from io import StringIO

import pytest
from rich.console import Console

from growpage.bench import report
from growpage.bench.comparison import METRICS, Comparison

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def written(comparison, tmp_path_factory):
    out = tmp_path_factory.mktemp("demo-out")
    return {file.name: file for file in report.write(comparison, out)}


def test_json_has_the_numbers_of_every_policy(written, comparison):
    data = json.loads(written["report.json"].read_text())
    assert list(data["policies"]) == ["full", "fixed", "growpage"]
    full, fixed = data["policies"]["full"], data["policies"]["fixed"]
    assert full["ratio_to_full"] == 1
    assert fixed["ratio_to_full"] == pytest.approx(
        fixed["tokens_per_s"] / full["tokens_per_s"], abs=1e-3
    )
    assert full["preemptions"] > fixed["preemptions"]
    assert all(policy["pages_leaked"] == 0 for policy in data["policies"].values())
    for policy in data["policies"].values():
        assert {metric.key for metric in METRICS} <= policy.keys()


def test_json_says_how_it_was_measured(written):
    data = json.loads(written["report.json"].read_text())
    assert (data["model"], data["dtype"]) == ("SmolLM2-135M-Instruct", "auto")
    assert data["workload"]["families"] == {"short": 10, "list": 10, "recall": 10}
    assert data["pool"]["pages"] == 95
    assert data["seed"] == 0
    assert data["machine"]["cores"] >= 1
    assert data["versions"]["python"].startswith("3.")
    assert data["policies"]["fixed"]["settings"] == {"policy": "fixed", "budget": 160}
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", data["date"])


def test_figures_are_pictures_with_something_on_them(written):
    for name in ("pages-by-request.png", "pool-occupancy.png"):
        content = written[name].read_bytes()
        assert content.startswith(PNG)
        assert len(content) > 20_000


def test_page_needs_nothing_else(written):
    html = written["report.html"].read_text()
    assert not re.search(r"https?:", html)
    assert not re.search(r"<(script|link|iframe)\b", html)
    sources = re.findall(r'(?:src|srcset|href)="([^"]{0,40})', html)
    assert sources
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)


def test_page_has_every_figure_in_both_colour_schemes(written, comparison):
    html = written["report.html"].read_text()
    images = re.findall(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)", html)
    assert len(images) == 2 * (len(comparison.results) + 1)
    assert len(set(images)) == len(images)
    for image in images:
        assert b"<svg" in base64.b64decode(image)
    assert html.count("prefers-color-scheme: dark") == 1 + len(images) // 2
    assert 'name="viewport"' in html


def test_page_is_of_a_size_to_send_around(written):
    assert written["report.html"].stat().st_size < 3_000_000


def test_page_has_the_table(written, comparison):
    html = written["report.html"].read_text()
    for metric in METRICS:
        assert metric.label in html
    for result in comparison.results:
        assert f"{result.tokens_per_s:.1f}" in html


def test_page_escapes_what_it_is_given(comparison):
    odd = dataclasses.replace(comparison.setting, model="<b>&model")
    html = report.page.render(Comparison(odd, comparison.results))
    assert "&lt;b&gt;&amp;model" in html
    assert "<b>" not in html


def test_table_has_a_column_for_each_policy(comparison):
    console = Console(width=100, file=StringIO())
    console.print(report.table(comparison))
    text = console.file.getvalue()
    for word in ("full", "fixed", "growpage", "tokens/s", "preemptions", "pages leaked"):
        assert word in text


def test_without_the_reference_nothing_is_compared(comparison):
    alone = Comparison(comparison.setting, comparison.results[1:])
    data = alone.to_dict()
    assert data["policies"]["fixed"]["ratio_to_full"] is None
    assert data["policies"]["fixed"]["agreement_prefix"] is None
    assert "relative" not in alone.headline()


def test_agreement_is_with_the_reference(comparison):
    full, fixed, _ = comparison.results
    changed = {name: [-1, *tokens[1:]] for name, tokens in fixed.outputs.items()}
    altered = Comparison(comparison.setting, [full, fixed.model_copy(update={"outputs": changed})])
    assert altered.rows[0].common_prefix == 1
    assert altered.rows[1].common_prefix == 0
    assert 0.9 < (altered.rows[1].equal_tokens or 0) < 1
