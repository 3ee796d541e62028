"""Why there is no evidence."""

from growpage.budget.errors import ConfigError


class SourceError(ConfigError):
    """The address, the key or a filter is wrong: what answers is not what was asked for."""


class UnreachableError(RuntimeError):
    """The server or Prometheus does not answer, or only with errors of its own."""
