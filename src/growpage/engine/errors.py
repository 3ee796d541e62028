"""What goes wrong with a model, a mode or a machine. Light: the command line loads it."""


class UnsupportedError(ValueError):
    """The model, a mode of vLLM, or vLLM itself is not supported; the message says what to do."""
