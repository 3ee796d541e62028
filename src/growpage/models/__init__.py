"""The embedded default model."""
