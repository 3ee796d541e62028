"""The parent's side of an engine's process: start it, give it loads, and never leave it behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from growpage.bench.launch import RunError, child
from growpage.bench.results import Failed, Progress
from growpage.bench.throughput.load import ClosedLoop, OpenLoop
from growpage.bench.throughput.protocol import (
    EVENT,
    EngineSpec,
    Measured,
    Measurement,
    Ready,
)

COMMAND = (sys.executable, "-m", "growpage.bench.throughput.engine_run")

OnProgress = Callable[[Progress], None]


class EngineProcess:
    """One contender's engine, up and warm, that waits for loads."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self._name = name
        self._process = process
        self._log = log

    def serve(self, load: ClosedLoop | OpenLoop, on_progress: OnProgress) -> Measurement:
        """Serve all requests at this pace.

        Raises:
            RunError: the engine failed, or its process ended.
        """
        self.say(load.model_dump_json())
        event = self.listen(on_progress)
        assert isinstance(event, Measured)
        return event.measurement

    def say(self, line: str) -> None:
        """Write one line to the process."""
        assert self._process.stdin
        # Where it died, its exit status says more than a broken pipe.
        with suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def listen(self, on_progress: OnProgress) -> Ready | Measured:
        """The next event that is no progress.

        Raises:
            RunError: the engine failed, or its process ended.
        """
        assert self._process.stdout
        for line in self._process.stdout:
            match EVENT.validate_json(line):
                case Progress() as progress:
                    on_progress(progress)
                case Failed(message=message):
                    raise RunError(f"{self._name} failed: {message}; vLLM's log is {self._log}")
                case event:
                    return event
        status = self._process.wait()
        raise RunError(f"{self._name} ended with status {status}; vLLM's log is {self._log}")


@contextmanager
def engine_process(
    spec: EngineSpec, log: Path, command: tuple[str, ...] = COMMAND
) -> Iterator[EngineProcess]:
    """A contender's engine, up and warm, until the block is left.

    Args:
        spec: what to start.
        log: the file that takes everything the process prints.
        command: the process, which speaks :mod:`growpage.bench.throughput.protocol`.

    Raises:
        RunError: it did not start.
    """
    with log.open("wb") as log_file, child(command, log_file) as process:
        engine = EngineProcess(spec.contender.name, process, log)
        engine.say(spec.model_dump_json())
        engine.listen(lambda _: None)
        yield engine
        assert process.stdin
        with suppress(BrokenPipeError):
            process.stdin.close()  # there are no more loads: it ends by itself
