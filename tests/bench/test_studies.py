"""The study's files are what the commands take."""

from __future__ import annotations

from pathlib import Path

import pytest

from growpage.bench.contenders import read_contenders
from growpage.bench.replay import check

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.mark.parametrize("file", sorted(STUDIES.glob("*.yaml")), ids=lambda file: file.stem)
def test_contenders_fit_pages_of_the_cpu(file: Path) -> None:
    check(read_contenders([], file))


OF_SOMETHING_ELSE = {"roomy", "gsm8k-8-bit", "pages-16", "pages-64"}
"""Comparisons that no budget can tell anything about."""


def test_every_comparison_has_full_kv_and_a_fixed_budget() -> None:
    files = sorted(STUDIES.glob("*.yaml"))
    assert files
    for file in files:
        policies = {each.policy for each in read_contenders([], file)}
        assert policies & {"full", "plain"}, file.stem
        assert "fixed" in policies or file.stem in OF_SOMETHING_ELSE
