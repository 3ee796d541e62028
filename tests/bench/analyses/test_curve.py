"""Reports on quality and on throughput, joined by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from growpage.bench.analyses.curve import (
    describe,
    figure,
    join,
    read_quality,
    read_throughput,
    table,
)
from growpage.bench.contenders import Contender
from growpage.bench.look import to_png
from growpage.budget.errors import ConfigError

HALF = {"value": 0.5, "low": 0.4, "high": 0.6}


def contender(text: str) -> dict[str, Any]:
    return Contender.of(text).model_dump()


REPLAY = {
    "setup": {"model": "tiny"},
    "loads": {
        "saturated": {
            "full": {"contender": contender("full"), "kl": {"value": 0.0, "low": 0.0, "high": 0.0}},
            "elastic": {
                "contender": contender("elastic"),
                "kl": {"value": 0.01, "low": 0.0, "high": 0.03},
            },
            "growpage": {"contender": contender("growpage"), "kl": HALF},
        }
    },
}
ANSWERS = {
    "setup": {"model": "tiny"},
    "contenders": [contender("full"), contender("elastic")],
    "figures": {"all": {"full": {"accuracy": HALF}, "elastic": {"accuracy": HALF}}},
}
THROUGHPUT = {
    "model": "tiny",
    "contenders": [contender(name) for name in ("plain", "elastic", "every")],
    "settings": [
        {
            "load": {"kind": "closed", "clients": 4},
            "pool": "50%",
            "baseline": "plain",
            "contenders": {
                "plain": {"ratio": None, "output_tokens_per_s": 40.0},
                "elastic": {
                    "ratio": {"value": 1.5, "low": 1.4, "high": 1.7},
                    "output_tokens_per_s": 60.0,
                },
                "every": {"ratio": HALF, "output_tokens_per_s": 20.0},
            },
        }
    ],
}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    quality, throughput = tmp_path / "replay.json", tmp_path / "throughput.json"
    quality.write_text(json.dumps(REPLAY))
    throughput.write_text(json.dumps(THROUGHPUT))
    return quality, throughput


def test_contenders_of_both_are_joined_and_the_others_named(files: tuple[Path, Path]) -> None:
    report = join(read_quality(files[0], "saturated"), read_throughput(files[1]))
    (setting,) = report["settings"]
    assert list(setting["points"]) == ["plain", "elastic"]
    assert setting["points"]["elastic"]["quality"]["value"] == 0.01
    assert setting["points"]["elastic"]["ratio"]["value"] == 1.5
    assert setting["points"]["plain"]["quality_of"] == "full"
    assert setting["points"]["plain"]["ratio"]["value"] == 1
    assert report["only_in_quality"] == ["growpage"]
    assert report["only_in_throughput"] == ["every"]
    shown = table(report)
    assert list(shown.columns[4].cells) == ["baseline", "1.50 [1.40, 1.70]"]
    assert "every" in str(shown.caption)
    drawn = figure(report)
    low, high = drawn.axes[0].get_ylim()
    assert low > high, "a small KL is on top"
    assert to_png(drawn).startswith(b"\x89PNG")


def test_right_answers_are_a_quality_too(files: tuple[Path, Path]) -> None:
    files[0].write_text(json.dumps(ANSWERS))
    report = join(read_quality(files[0], "saturated"), read_throughput(files[1]))
    assert report["measure"] == "right answers" and not report["less_is_better"]
    drawn = figure(report)
    low, high = drawn.axes[0].get_ylim()
    assert low < high
    assert list(table(report).columns[2].cells)[1] == "50.0% [40.0%, 60.0%]"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "other"}, "on tiny and throughput on other"),
        ({"contenders": [contender("every")]}, "no contender is in both"),
        (
            {"contenders": [contender("elastic=elastic:watermark=3")]},
            "elastic has settings",
        ),
    ],
)
def test_what_does_not_belong_together_is_refused(
    files: tuple[Path, Path], change: dict[str, Any], message: str
) -> None:
    files[1].write_text(json.dumps({**THROUGHPUT, **change}))
    with pytest.raises(ConfigError, match=message):
        join(read_quality(files[0], "saturated"), read_throughput(files[1]))


def test_other_files_are_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    quality, throughput = files
    with pytest.raises(ConfigError, match="no report of growpage bench throughput"):
        read_throughput(quality)
    with pytest.raises(ConfigError, match="quality replay or answers"):
        read_quality(throughput, "saturated")
    with pytest.raises(ConfigError, match="it has saturated"):
        read_quality(quality, "varying")
    with pytest.raises(ConfigError, match="cannot read"):
        read_throughput(tmp_path / "absent.json")
    (tmp_path / "text").write_text("no JSON")
    with pytest.raises(ConfigError, match="no JSON report"):
        read_throughput(tmp_path / "text")


def test_settings_in_words() -> None:
    assert describe({"load": {"clients": 4}, "pool": "50%"}) == "4 clients, pool 50%"
    assert describe({"load": {"rate": 1.5}, "pool": "40"}) == "1.5 requests/s, pool 40 pages"
