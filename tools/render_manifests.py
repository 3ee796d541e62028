"""Render the chart for every combination of values that docs/kubernetes.md shows.

The documentation is the single source: each fenced block behind a line ``<!-- values: NAME -->``
holds the values of one combination, and its manifests are ``deploy/kubernetes/NAME/growpage.yaml``.
The chart's copy of the Prometheus rules is brought up to date too, since Helm reads no file outside
its chart.

    python tools/render_manifests.py            # write them
    python tools/render_manifests.py --check    # only say what is not up to date: exit status 1
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "deploy/helm/growpage"
DOCUMENTATION: Final = ROOT / "docs/kubernetes.md"
MANIFESTS: Final = ROOT / "deploy/kubernetes"
RULES: Final = ROOT / "deploy/prometheus/rules.yaml"
RULES_IN_CHART: Final = CHART / "files/rules.yaml"

RELEASE: Final = "growpage"
NAMESPACE: Final = "growpage"

# What others refer to comes first, as in Helm's own order.
KINDS: Final = (
    "NetworkPolicy",
    "PodDisruptionBudget",
    "ServiceAccount",
    "ConfigMap",
    "PersistentVolumeClaim",
    "Role",
    "RoleBinding",
    "Service",
    "Deployment",
    "HorizontalPodAutoscaler",
    "ScaledObject",
    "PodMonitor",
    "PrometheusRule",
)

KUSTOMIZATION: Final = """\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [growpage.yaml]
"""

HEADER: Final = """\
# The values `{name}` of docs/kubernetes.md, rendered by tools/render_manifests.py: change those and
# render again. The image names and the namespace `growpage` are examples.
"""

_VALUES_BLOCK: Final = re.compile(
    r"^<!-- values: (?P<name>[a-z0-9-]+) -->\n```yaml\n(?P<yaml>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_SEPARATOR: Final = re.compile(r"^---$", re.MULTILINE)


def documented_values(markdown: str) -> dict[str, dict[str, Any]]:
    """The combinations of values in ``markdown``, by name.

    Raises:
        ValueError: two have the same name, or one is no mapping.
    """
    combinations: dict[str, dict[str, Any]] = {}
    for block in _VALUES_BLOCK.finditer(markdown):
        name, values = block["name"], yaml.safe_load(block["yaml"])
        if name in combinations:
            raise ValueError(f"the values {name} are given twice: give the second another name")
        if not isinstance(values, dict):
            raise ValueError(f"the values {name} are {values!r}, but must be a mapping")
        combinations[name] = values
    return combinations


def render(values: Mapping[str, Any], *, chart: Path = CHART) -> str:
    """The manifests that ``helm template`` makes of ``values``, ordered by kind and name.

    Raises:
        helm_python.HelmError: the schema or a template refuses the values.
    """
    # Only where it is used: Helm brings the runtime of Go with it, signal handlers and all.
    from helm_python import Chart

    with Chart.load(chart) as loaded:
        templates = loaded.render(dict(values), name=RELEASE, namespace=NAMESPACE)
    manifests = [
        manifest
        for path, text in sorted(templates.items())
        if path.endswith(".yaml")
        for manifest in _documents(text)
    ]
    return "---\n".join(sorted(manifests, key=_install_order))


def generated_files(documentation: Path = DOCUMENTATION) -> Iterator[tuple[Path, str]]:
    """Every file that is made from another, with its content; the rules before what holds them."""
    yield RULES_IN_CHART, RULES.read_text(encoding="utf-8")
    for name, values in documented_values(documentation.read_text(encoding="utf-8")).items():
        folder = MANIFESTS / name
        yield folder / "growpage.yaml", HEADER.format(name=name) + render(values)
        yield folder / "kustomization.yaml", KUSTOMIZATION


def main() -> int:
    """Write the generated files, or check them; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a file is not current"
    )
    check = parser.parse_args().check
    stale = []
    for path, content in generated_files():
        if path.is_file() and path.read_text(encoding="utf-8") == content:
            continue
        stale.append(path)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    for path in stale:
        print(f"{'not current' if check else 'wrote'}: {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


def _documents(text: str) -> Iterator[str]:
    for document in _SEPARATOR.split(text):
        if yaml.safe_load(document) is not None:
            yield document.strip() + "\n"


def _install_order(manifest: str) -> tuple[int, str]:
    content = yaml.safe_load(manifest)
    return KINDS.index(content["kind"]), content["metadata"]["name"]


if __name__ == "__main__":
    sys.exit(main())
