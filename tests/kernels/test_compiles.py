"""The kernels compile for GPUs: Triton's interpreter accepts more than its compiler does.

No GPU is needed for that; Triton brings NVIDIA's assembler. It says nothing of how they run.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel

from growpage.kernels import averages, compaction, window_scores, working_set

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="nothing is compiled under the interpreter"
)
HOPPER = GPUTarget("cuda", 90, 32)

TYPES = {
    "scale": "fp32",
    "short": "fp32",
    "long": "fp32",
    "mass": "i64",
    "queries": "*bf16",
    "cos_sin": "*bf16",
    **dict.fromkeys(("average", "sums", "scores", "attention"), "*fp32"),
    **dict.fromkeys(("rows", "slots", "positions", "survivors", "tables", "table"), "*i64"),
    **dict.fromkeys(("capacities", "sizes", "held", "staged"), "*i64"),
}
SCORING = {"PAGE": 16, "QUERIES": 16, "GROUP": 8, "DIM": 128, "TOKENS": 64, "AS_STORED": True}


def compiled(kernel: Any, constants: dict[str, Any], cache: str) -> CompiledKernel:
    types = {**TYPES, "cache": cache}
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32")
        for name in kernel.arg_names
    }
    return triton.compile(
        ASTSource(kernel, signature, constexprs=constants),
        target=HOPPER,
        options={"num_warps": 8},
    )


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compile for real, and leave nothing behind."""
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))


@pytest.mark.parametrize(
    ("kernel", "constants"),
    [
        (averages._update, {"NEOX": True, "HEADS": 8, "HALF": 64, "REST": 0}),
        (averages._update, {"NEOX": False, "HEADS": 8, "HALF": 16, "REST": 64}),
        (working_set._measure, {"KEYS": 4096}),
        (window_scores._sum, SCORING),
        (window_scores._score, {**SCORING, "SPLITS": 32}),
        (window_scores._score, {**SCORING, "AS_STORED": False, "TOKENS": 16, "SPLITS": 32}),
    ],
)
def test_compiles(kernel: Any, constants: dict[str, Any]) -> None:
    assert compiled(kernel, constants, "*bf16").asm["cubin"]


def test_a_block_is_read_before_it_is_written() -> None:
    """What the proof of the compaction in place asks of the compiler, seen in its output."""
    constants = {"PAGE": 16, "PLACES": 64, "COLUMNS": 16}
    ptx = compiled(compaction._move, constants, "*i64").asm["ptx"]
    order = re.findall(r"ld\.global|bar\.sync|st\.global", ptx)
    barrier = order.index("bar.sync")
    assert set(order[:barrier]) == {"ld.global"}
    assert set(order[barrier:]) == {"bar.sync", "st.global"}
