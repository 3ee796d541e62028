"""The troubleshooting checklist of ``growpage doctor``: evidence in, findings out.

Checks are pure functions of :class:`~growpage.diagnosis.evidence.Evidence`, which comes from a
server's ``/metrics`` or from Prometheus. Imports neither torch nor vLLM.
"""
