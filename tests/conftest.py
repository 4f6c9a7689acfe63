"""For all tests: property tests draw the same examples every time, and a slow machine is no failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("obsspec", deadline=None, derandomize=True)
settings.load_profile("obsspec")
