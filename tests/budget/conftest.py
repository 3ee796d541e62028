"""Property tests here draw the same examples on every run, and share the machine with others."""

from hypothesis import settings

settings.register_profile("growpage", deadline=None, derandomize=True, database=None)
settings.load_profile("growpage")
