"""The live page's data, as far as no engine is needed for it."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any, get_args
from unittest.mock import create_autospec

from growpage.budget.rollout import Mode
from growpage.engine.journal import Journal
from growpage.engine.live import LiveFeed, Queue
from growpage.engine.manager import GrowPageManager
from growpage.engine.observations import Observations
from growpage.engine.reporter import EngineFacts
from growpage.telemetry.feed import read_snapshots


def test_a_folder_that_nobody_has_made_is_made_for_this_user_alone(tmp_path: Path) -> None:
    pages: Any = create_autospec(GrowPageManager, instance=True)
    pages.configure_mock(accounts={}, total_pages=4, free_pages=4, block_size=32)
    pages.cached_pages.return_value = []
    journals = [Journal(mode, Observations(wanted=False)) for mode in get_args(Mode)]
    facts = EngineFacts("elastic", "window", "auto", 1.0, 8)
    folder = tmp_path / "not" / "there"
    feed = LiveFeed(folder, 0, "tiny", facts, pages, journals, count().__next__)
    assert folder.stat().st_mode & 0o777 == 0o700
    feed.update({}, Queue(running=0, waiting=0), "enforce")
    (snapshot,) = read_snapshots(folder)
    assert (snapshot["model"], snapshot["free_pages"]) == ("tiny", 4)
