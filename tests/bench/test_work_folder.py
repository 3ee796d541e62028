"""A folder of finished parts belongs to one measurement."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from growpage.bench.work_folder import claim
from growpage.budget.errors import ConfigError


class Setup(BaseModel):
    model: str
    seed: int = 0


def test_the_same_measurement_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "new" / "setup.json"
    for _ in range(2):
        claim(file, Setup(model="a"))
    assert Setup.model_validate_json(file.read_text()) == Setup(model="a")


def test_another_one_is_refused_with_what_differs(tmp_path: Path) -> None:
    file = tmp_path / "setup.json"
    claim(file, Setup(model="a"))
    with pytest.raises(ConfigError, match="whose seed is 0 and not 3; give another work folder"):
        claim(file, Setup(model="a", seed=3))
    assert Setup.model_validate_json(file.read_text()).seed == 0


@pytest.mark.parametrize("content", ["", "{}", '{"model": 3'])
def test_what_is_no_setup_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    file = tmp_path / "setup.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"setup\.json is not what growpage has written"):
        claim(file, Setup(model="a"))
    assert file.read_text() == content
