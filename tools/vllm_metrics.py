"""List the metrics that a version of vLLM exposes: name, type and labels, without values.

    curl http://HOST:8000/metrics > exposition.txt
    python tools/vllm_metrics.py exposition.txt --output tests/data/vllm-0.32-metrics.txt

The result is what the tests hold the dashboard's and the rules' queries against. Growpage's own
metrics are left out, which the catalogue lists, and the ``_created`` times, which nobody queries.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

HEADER = """\
# What vLLM exposes at /metrics: name, type, labels. Made by tools/vllm_metrics.py.
"""


def rows(exposition: str) -> Iterator[str]:
    """One line a metric as it is queried, sorted: ``name type label,label``."""
    found: dict[str, tuple[str, set[str]]] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if not sample.name.startswith("growpage_") and not sample.name.endswith("_created"):
                found.setdefault(sample.name, (family.type, set()))[1].update(sample.labels)
    for name, (kind, labels) in sorted(found.items()):
        yield f"{name} {kind} {','.join(sorted(labels)) or '-'}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("exposition", type=Path, help="what a server answered at /metrics")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    lines = rows(options.exposition.read_text(encoding="utf-8"))
    options.output.write_text(HEADER + "".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
