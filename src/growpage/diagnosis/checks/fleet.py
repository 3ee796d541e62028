"""Checks of all engines together: are they there, do they carry growpage, are they alike."""

from __future__ import annotations

from growpage._version import __version__
from growpage.diagnosis.checks.verdict import Verdict, failure, ok, unknown, warning
from growpage.diagnosis.evidence import Evidence, MissingMetricError
from growpage.engine.seams import SUPPORTED

COMPARED = ("policy", "score", "mode", "cache")
"""Labels of ``growpage_mode_info`` in which engines should agree."""

NOT_YET = "metric growpage_mode_info is not exported (an engine first reports when it has work)"


def engines(evidence: Evidence) -> Verdict:
    """Whether every engine reports."""
    targets = evidence.targets
    if targets is not None and targets.down:
        return failure(
            f"{len(targets.down)} of {len(targets.down) + targets.up} targets cannot be scraped: "
            f"{_listed(targets.down)}",
            "see whether these servers run (Status > Targets in Prometheus says why)",
        )
    if not evidence.engines:
        if targets is not None:
            return failure(
                f"no engine reports any more; {_listed(targets.gone)} did within the span",
                "see whether the servers run, and whether Prometheus still finds them",
            )
        return failure(
            "the server answers, but exports no vllm:* metrics",
            "start it without --disable-log-stats",
        )
    names = _listed(tuple(engine.name for engine in evidence.engines))
    models = ", ".join(sorted({engine.model for engine in evidence.engines}))
    gone = f"; gone since: {_listed(targets.gone)}" if targets and targets.gone else ""
    return ok(f"{len(evidence.engines)} of {models}: {names}{gone}")


def growpage_metrics(evidence: Evidence) -> Verdict:
    """Whether the plugin is loaded and its metrics reach the exporter."""
    if not evidence.engines:
        return unknown("no engine reports")
    without = tuple(engine.name for engine in evidence.engines if not engine.has_growpage)
    if not without:
        return ok(f"exported by {len(evidence.engines)} of {len(evidence.engines)} engines")
    if evidence.server is not None and evidence.server.routes:
        return failure(
            f"growpage is loaded (/metrics/growpage answers), but {_listed(without)} exports none "
            "of its metrics: there is no budget, or metrics are off",
            "start the server with growpage serve and without --growpage-no-metrics, or with all "
            "that its --print-command shows",
        )
    return failure(
        f"{_listed(without)} exports vllm:* metrics, but none of growpage's: the plugin is not on, "
        "or vLLM was told to leave it out",
        "start the server with growpage serve, or with all that its --print-command shows; where "
        "VLLM_PLUGINS is set, growpage must be in it",
    )


def versions(evidence: Evidence) -> Verdict:
    """Whether vLLM is supported, and whether growpage is the same everywhere."""
    vllm = evidence.server.vllm_version if evidence.server else None
    if vllm is not None and _major_minor(vllm) not in SUPPORTED:
        wanted = " or ".join(".".join(map(str, version)) for version in SUPPORTED)
        return failure(f"the server runs vLLM {vllm}", f"install vLLM {wanted}")
    said = f"vLLM {vllm}" if vllm else "vLLM's version is not exported"
    found = _labels(evidence, "version")
    if not found:
        return unknown(f"{said}; {NOT_YET}")
    if len(found) > 1:
        each = "; ".join(f"{version} on {_listed(names)}" for version, names in found.items())
        return warning(
            f"{said}; engines run different versions of growpage: {each}",
            "finish the roll-out, or pin the image",
        )
    (version,) = found
    if version != __version__:
        return warning(
            f"{said}; the engines run growpage {version}, and this doctor is {__version__}",
            f"diagnose with growpage {version}, whose metrics it knows",
        )
    return ok(f"{said}; growpage {version}")


def alike(evidence: Evidence) -> Verdict:
    """Whether the engines of a model are set alike."""
    models = sorted({engine.model for engine in evidence.growpage_engines()})
    if not models:
        return unknown(NOT_YET)
    for model in models:
        for label in COMPARED:
            found = _labels(evidence, label, model)
            if len(found) > 1:
                each = "; ".join(f"{value} on {_listed(names)}" for value, names in found.items())
                return warning(
                    f"engines of {model} differ in {label}: {each}",
                    "give all of them the same budget, or compare their numbers separately",
                )
    settings = ", ".join(
        f"{label} {value}" for label in COMPARED for value in _labels(evidence, label)
    )
    if not settings:
        return unknown(NOT_YET)
    return ok(settings)


def _labels(evidence: Evidence, label: str, model: str | None = None) -> dict[str, tuple[str, ...]]:
    """The engines that have each value of a label of ``growpage_mode_info``."""
    found: dict[str, tuple[str, ...]] = {}
    for engine in evidence.growpage_engines():
        if model is not None and engine.model != model:
            continue
        try:
            value = engine.label("growpage_mode_info", label)
        except MissingMetricError:
            continue
        found[value] = (*found.get(value, ()), engine.name)
    return found


def _listed(names: tuple[str, ...]) -> str:
    """A few names; the number of the others."""
    shown = ", ".join(names[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown


def _major_minor(version: str) -> tuple[int, int]:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)
