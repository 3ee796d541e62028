"""The protocol with a run's process, and that none is left behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from growpage.bench.launch import RunError, launch
from growpage.bench.results import Finished, RunSpec, Started

SPEC = RunSpec(
    policy="fixed",
    settings=None,
    model="model",
    requests=[],
    pool_pages=1,
    page_bytes=1,
    block_size=32,
)


def python(*lines: str) -> tuple[str, ...]:
    return (sys.executable, "-c", "import sys, time, os\n" + "\n".join(lines))


def test_passes_events_on_and_returns_the_result(comparison, tmp_path):
    answer = Finished(result=comparison.results[0]).model_dump_json()
    (tmp_path / "answer").write_text(answer + "\n")
    seen = []
    result = launch(
        SPEC,
        tmp_path / "log",
        seen.append,
        python(
            'assert \'"policy":"fixed"\' in sys.stdin.read()',
            "print('loading', file=sys.stderr)",
            f"print({Started(engine_start_s=1).model_dump_json()!r}, flush=True)",
            f"print(open({str(tmp_path / 'answer')!r}).read())",
        ),
    )
    assert result == comparison.results[0]
    assert [type(event).__name__ for event in seen] == ["Started", "Finished"]
    assert (tmp_path / "log").read_text() == "loading\n"


def test_a_failure_is_one_line_that_points_to_the_log(tmp_path):
    with pytest.raises(RunError, match=r"fixed failed: no memory; vLLM's log is .*log"):
        launch(
            SPEC,
            tmp_path / "log",
            lambda _: None,
            python("""print('{"event": "failed", "message": "no memory"}')"""),
        )


@pytest.mark.parametrize(
    ("line", "status"), [("sys.exit(3)", "3"), ("os.kill(os.getpid(), 9)", "-9")]
)
def test_a_process_that_just_ends(tmp_path, line, status):
    with pytest.raises(RunError, match=f"ended with status {status} and no result"):
        launch(SPEC, tmp_path / "log", lambda _: None, python(line))


def test_an_interrupt_leaves_no_process(tmp_path):
    """Neither the run's own nor one that it started."""
    pids = tmp_path / "pids"

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(
            SPEC,
            tmp_path / "log",
            interrupt,
            python(
                "import subprocess",
                "child = subprocess.Popen(['sleep', '60'])",
                f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')",
                f"print({Started(engine_start_s=1).model_dump_json()!r}, flush=True)",
                "time.sleep(60)",
            ),
        )
    for pid in map(int, pids.read_text().split()):
        _wait_gone(pid)


def _wait_gone(pid: int) -> None:
    for _ in range(50):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if _is_zombie(pid):  # of a parent that does not collect it, as in a container
            return
        time.sleep(0.1)
    pytest.fail(f"process {pid} is still there")


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"
