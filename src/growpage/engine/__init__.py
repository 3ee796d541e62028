"""The vLLM plugin: the only package that imports vLLM."""
