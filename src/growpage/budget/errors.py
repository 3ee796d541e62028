"""What goes wrong with a configuration."""


class ConfigError(ValueError):
    """A setting that cannot be used; the message names it, its value and what is allowed."""
