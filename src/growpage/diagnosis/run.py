"""Runs the checklist over the evidence."""

from __future__ import annotations

from dataclasses import replace

from growpage.budget.config import BudgetConfig
from growpage.diagnosis.checks import ENGINE_CHECKS, EVIDENCE_CHECKS, EngineCheck, Verdict
from growpage.diagnosis.checks.verdict import unknown
from growpage.diagnosis.evidence import Engine, Evidence, MissingMetricError
from growpage.diagnosis.finding import Finding, by_severity


def diagnose(evidence: Evidence, settings: BudgetConfig | None = None) -> list[Finding]:
    """Every check's finding, the worst first.

    Args:
        evidence: what to go by.
        settings: what the engines run with, where the caller knows it.
    """
    findings = []
    for name, check in EVIDENCE_CHECKS.items():
        verdict = check(evidence)
        findings.append(Finding(name, verdict.status, verdict.detail, verdict.remedy))
    engines = [replace(engine, settings=settings) for engine in evidence.engines]
    if engines:
        findings += [_over_engines(name, check, engines) for name, check in ENGINE_CHECKS.items()]
    return by_severity(findings)


def _over_engines(name: str, check: EngineCheck, engines: list[Engine]) -> Finding:
    """The worst engine's verdict, and how many stand as badly."""
    verdicts = [(_verdict(check, engine), engine) for engine in engines]
    worst, engine = min(verdicts, key=lambda pair: pair[0].status.severity)
    detail = worst.detail
    if len(engines) > 1:
        alike = sum(verdict.status is worst.status for verdict, _ in verdicts)
        detail = (
            f"{engine.name}: {detail} ({alike} of {len(engines)} engines: {worst.status.value})"
        )
    return Finding(name, worst.status, detail, worst.remedy)


def _verdict(check: EngineCheck, engine: Engine) -> Verdict:
    try:
        return check(engine)
    except MissingMetricError as error:
        return unknown(str(error))
