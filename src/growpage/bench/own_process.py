"""A process for each engine: none inherits another's memory, and its words go to a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

from growpage.budget.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")


def in_own_process(log: Path, run: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What ``run`` returns in a fresh process.

    Args:
        log: the file to which all that the process prints is added.
        run: a module's function; it, its arguments and its result can be pickled.
        args: its arguments.
        kwargs: its named arguments.

    Raises:
        ConfigError: what ``run`` refuses.
        RuntimeError: anything else that it raises, in one line.
    """
    with ProcessPoolExecutor(1, get_context("spawn"), _log_to, (log,)) as pool:
        try:
            return pool.submit(run, *args, **kwargs).result()
        except ConfigError:
            raise
        except Exception as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise RuntimeError(f"an engine failed: {first} (see {log})") from error


def _log_to(file: Path) -> None:
    with file.open("ab") as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
