"""The engines' snapshot files: whole or not there, private, and honest about what is old."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import pytest

from growpage.telemetry.feed import (
    STALE_AFTER_S,
    age,
    is_stale,
    oldest_age,
    parse_state,
    read_snapshots,
    read_state,
    write_snapshot,
)
from growpage.telemetry.snapshot import Snapshot
from tests.telemetry.rehearsal import RehearsedEngine

NOW = 1_800_000_000.0


def snapshot(engine: int = 0, seconds: float = 20.0) -> Snapshot:
    rehearsed = RehearsedEngine(engine, 200, NOW - seconds)
    rehearsed.run(seconds)
    return rehearsed.snapshot()


def test_what_is_written_is_read_again_by_index(tmp_path: Path) -> None:
    written = [snapshot(engine) for engine in (10, 2, 0)]
    for one in written:
        write_snapshot(tmp_path, one)
    read = read_snapshots(tmp_path)
    assert [one["engine"] for one in read] == [0, 2, 10]
    assert read[2] == written[0]
    assert len(read[2]["requests"]) > 3 and len(read[2]["decisions"]) > 10


def test_a_later_snapshot_takes_the_place_of_the_earlier(tmp_path: Path) -> None:
    for seconds in (5.0, 10.0):
        write_snapshot(tmp_path, snapshot(seconds=seconds) | {"waiting": int(seconds)})  # type: ignore[arg-type]
    assert [one["waiting"] for one in read_snapshots(tmp_path)] == [10]
    assert [path.name for path in tmp_path.iterdir()] == ["engine-0.json"]


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    one = snapshot()
    write_snapshot(tmp_path, one)
    done = threading.Event()

    def write() -> None:
        for _ in range(200):
            write_snapshot(tmp_path, one)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while not done.is_set():
        assert read_state(tmp_path, NOW)["unreadable"] == []
        assert len(read_snapshots(tmp_path)) == 1
        reads += 1
    writer.join()
    assert reads > 3


def test_no_other_user_can_read_it(tmp_path: Path) -> None:
    assert write_snapshot(tmp_path, snapshot()).stat().st_mode & 0o077 == 0


def test_figures_that_json_has_no_word_for_become_null(tmp_path: Path) -> None:
    one = snapshot()
    one["decisions"][-1]["delta"] = math.nan
    one["decisions"][-1]["loss"] = math.inf
    path = write_snapshot(tmp_path, one)
    assert "NaN" not in path.read_text()
    decision = read_snapshots(tmp_path)[0]["decisions"][-1]
    assert (decision["delta"], decision["loss"]) == (None, None)


def test_an_id_that_is_no_text_does_not_stop_the_engine(tmp_path: Path) -> None:
    one = snapshot()
    one["requests"][0]["id"] = "half \ud83d of a pair"
    one["decisions"][-1]["delta"] = math.nan
    assert "NaN" not in write_snapshot(tmp_path, one).read_text()
    assert read_snapshots(tmp_path)[0]["requests"][0]["id"] == "half ? of a pair"


@pytest.mark.parametrize(
    "content", [b"", b'{"time": 1.0, "engi', b"[]", b'{"engine": 1}', b"\xff\xfe"]
)
def test_a_file_that_holds_no_snapshot_is_named_and_hides_no_other(
    tmp_path: Path, content: bytes
) -> None:
    write_snapshot(tmp_path, snapshot())
    (tmp_path / "engine-1.json").write_bytes(content)
    (tmp_path / "engine-2.partial").write_bytes(content)
    state = read_state(tmp_path, NOW)
    assert [one["engine"] for one in state["engines"]] == [0]
    assert state["unreadable"] == ["engine-1.json"]
    assert len(read_snapshots(tmp_path)) == 1


def test_a_folder_without_snapshots(tmp_path: Path) -> None:
    assert read_state(tmp_path, NOW) == {"time": NOW, "engines": [], "unreadable": []}
    assert oldest_age([], NOW) is None


def test_the_oldest_age_and_a_clock_that_is_ahead(tmp_path: Path) -> None:
    one, two = snapshot(0), snapshot(1)
    two["time"] -= 3
    assert oldest_age([one, two], NOW + 1) == pytest.approx(4)
    assert age(one, NOW - 5) == 0


def test_only_an_engine_with_work_is_stale() -> None:
    one = snapshot()
    assert one["running"] > 0
    assert not is_stale(one, NOW + STALE_AFTER_S)
    assert is_stale(one, NOW + STALE_AFTER_S + 1)
    one["running"] = one["waiting"] = 0
    assert not is_stale(one, NOW + 3600)
    one["waiting"] = 1
    assert is_stale(one, NOW + 3600)


def test_what_is_no_state_is_refused(tmp_path: Path) -> None:
    state = read_state(tmp_path, NOW)
    assert parse_state(json.dumps(state).encode()) == state
    for content in (b"", b"{}", b'{"time": 1, "engines": [{"engine": 0}], "unreadable": []}'):
        with pytest.raises(ValueError):
            parse_state(content)
