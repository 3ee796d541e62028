"""Runs a benchmark run in a process of its own and leaves none behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from growpage.bench.results import EVENT, Event, Failed, Finished, RunResult, RunSpec

COMMAND = (sys.executable, "-m", "growpage.bench.run_policy")

GRACE_S = 10.0
"""Seconds that a process has to end when it is told to, before it is killed."""


class RunError(RuntimeError):
    """A run gave no result; the message is one line that says why and where the log is."""


def launch(
    spec: RunSpec,
    log: Path,
    on_event: Callable[[Event], None],
    command: tuple[str, ...] = COMMAND,
) -> RunResult:
    """Run a spec and wait for its result.

    Args:
        spec: what to run.
        log: the file that takes everything the process prints.
        on_event: called with each event as it arrives.
        command: the process, which speaks the protocol of :mod:`growpage.bench.results`.

    Raises:
        RunError: the run failed, or its process ended without a result.
    """
    with log.open("wb") as log_file, child(command, log_file) as process:
        assert process.stdin and process.stdout
        try:
            with process.stdin as standard_input:
                standard_input.write(spec.model_dump_json().encode())
        except BrokenPipeError:
            pass  # it died at once: its exit status says more than this
        for line in process.stdout:
            event = EVENT.validate_json(line)
            on_event(event)
            if isinstance(event, Finished):
                return event.result
            if isinstance(event, Failed):
                raise RunError(f"{spec.policy} failed: {event.message}; vLLM's log is {log}")
        status = process.wait()
    raise RunError(f"{spec.policy} ended with status {status} and no result; vLLM's log is {log}")


@contextmanager
def child(command: tuple[str, ...], log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is spoken to through its standard input and output, and never left behind."""
    # A session of its own: Ctrl-C reaches only us, and we end the process and all that it started.
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
    )
    try:
        yield process
    except BaseException:
        _end(process, signal.SIGTERM)
        raise
    finally:
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            _end(process, signal.SIGKILL)
            process.wait()
        if process.stdout:
            process.stdout.close()


def _end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    if process.poll() is None:
        os.killpg(process.pid, how)
