"""The demo around its runs: what it refuses and how it ends. No engine is started."""

from __future__ import annotations

import inspect
import json
from io import StringIO

import pytest
from rich.console import Console

from growpage.bench import demo
from growpage.bench.launch import RunError
from growpage.bench.results import Progress, Started
from growpage.bench.workload import MAX_NEW_TOKENS, SIZE
from growpage.budget.config import BudgetConfig
from growpage.cli.demo import demo as command


class Words:
    def apply_chat_template(self, conversation, **_):
        return [1] * len(conversation[0]["content"].split())


@pytest.fixture
def model(tmp_path, monkeypatch):
    folder = tmp_path / "tiny"
    folder.mkdir()
    shape = {
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_size": 64,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(shape))
    monkeypatch.setattr(demo, "load_tokenizer", lambda _: Words())
    return folder


@pytest.fixture
def runs(comparison, monkeypatch):
    """Stands in for the processes: every run answers at once, and is kept here."""
    seen = []

    def launch(spec, log, on_event):
        seen.append(spec)
        log.write_text("")
        on_event(Started(engine_start_s=1))
        on_event(Progress(finished=1, tokens=10))
        template = comparison.results[min(len(seen), 3) - 1]
        names = [request.id for request in spec.requests]
        return template.model_copy(
            update={
                "policy": spec.policy,
                "outputs": {name: [1, 2] for name in names},
                "timeline": template.timeline.model_copy(
                    update={"pages": {name: template.timeline.pages[name] for name in names}}
                ),
                "preempted": [],
            }
        )

    monkeypatch.setattr(demo, "launch", launch)
    return seen


def console() -> Console:
    return Console(file=StringIO(), width=100)


def test_runs_the_policies_in_order_with_the_same_requests_and_pool(model, runs, tmp_path):
    out = tmp_path / "deep" / "demo-out"
    assert demo.run_demo(out, model, size=9, console=console()) == 0
    assert [spec.policy for spec in runs] == ["full", "fixed", "growpage", "elastic"]
    assert all(spec.requests == runs[0].requests for spec in runs)
    assert len({spec.pool_pages for spec in runs}) == 1
    data = json.loads((out / "report.json").read_text())
    assert list(data["policies"]) == ["full", "fixed", "growpage", "elastic"]
    assert data["model"] == "tiny"


def test_roomy_has_a_pool_for_everybody(model, runs, tmp_path):
    demo.run_demo(tmp_path, model, ["plain", "roomy"], size=9, console=console())
    plain, roomy = runs
    assert plain.settings is None
    assert roomy.settings is None
    assert roomy.pool_pages > 4 * plain.pool_pages


def test_a_leak_is_said_and_fails(model, runs, tmp_path, monkeypatch):
    honest = demo.launch

    def leaky(*arguments):
        return honest(*arguments).model_copy(update={"pages_leaked": 2})

    monkeypatch.setattr(demo, "launch", leaky)
    shown = console()
    assert demo.run_demo(tmp_path, model, ["full"], size=3, console=shown) == 1
    assert "full did not give 2 pages back" in shown.file.getvalue()


def test_a_failed_run_ends_the_demo(model, runs, tmp_path, monkeypatch):
    def fail(*_):
        raise RunError("full failed: no memory")

    monkeypatch.setattr(demo, "launch", fail)
    with pytest.raises(demo.DemoError, match="full failed: no memory"):
        demo.run_demo(tmp_path, model, console=console())


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        (["full", "best"], "unknown policy 'best': the demo has full, fixed"),
        ([], "at least one policy"),
        (["full", "full"], "each only once"),
    ],
)
def test_policies_that_cannot_be_run(model, tmp_path, policies, message):
    with pytest.raises(demo.DemoError, match=message):
        demo.run_demo(tmp_path, model, policies, console=console())


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(demo.DemoError, match="not a model's folder"):
        demo.run_demo(tmp_path, tmp_path, console=console())


def test_a_size_out_of_range(model, tmp_path):
    with pytest.raises(demo.DemoError, match="1 to 32 requests, not 40"):
        demo.run_demo(tmp_path, model, size=40, console=console())


def test_out_is_a_file(model, tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(demo.DemoError, match="out"):
        demo.run_demo(tmp_path / "out", model, console=console())


@pytest.mark.parametrize("name", demo.POLICIES)
def test_settings_are_valid(name):
    BudgetConfig.model_validate(demo.POLICIES[name].settings or {})


def test_the_command_has_the_same_defaults():
    """It repeats them, so that its help does not need the benchmark's imports."""
    defaults = {
        name: parameter.default for name, parameter in inspect.signature(command).parameters.items()
    }
    assert defaults["policies"] == ",".join(demo.DEFAULT_POLICIES)
    assert defaults["requests"] == SIZE
    assert defaults["max_new_tokens"] == MAX_NEW_TOKENS
